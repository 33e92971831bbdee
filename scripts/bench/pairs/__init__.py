"""The arithmetic of scripts/bench/versus: two lists of runs become ratios."""
