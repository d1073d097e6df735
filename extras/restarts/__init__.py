"""Restarts: a watcher ends a job step that hangs, and starts a failed one again."""
