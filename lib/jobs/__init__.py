"""Slurm jobs: submit, start, launcher, record, status, re-run."""
