"""`pegaflow`: looks at a running system from outside. One module per command."""
