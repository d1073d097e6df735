"""Frozen code: a job runs the code as it was at its submission, whatever changes meanwhile."""
