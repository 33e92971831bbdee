"""What happens to a tier or a metaserver with very many pages, event by event (scripts/bench/stalls)."""
