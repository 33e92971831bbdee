"""An engine, its KV memory and a tier as models around the connector's real halves: what the oracle test drives."""
