"""Parts of scripts/bench/router."""
