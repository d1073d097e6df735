"""Re-runs: `submit.py rerun RUN` repeats a run with its script, configuration, code and image."""
