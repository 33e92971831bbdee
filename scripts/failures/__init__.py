"""Processes of a deployment killed, stopped and restarted at every phase of a request: see scripts/chaos."""
