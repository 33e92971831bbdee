"""`pegaflow-watch`: an event listener of supervisord that restarts what is RUNNING but does not live."""
