"""Sweeps: a job array whose tasks take the lines of a file as arguments."""
