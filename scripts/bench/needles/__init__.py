"""Parts of scripts/bench/accuracy."""
