"""Conda: `set_up.py from-conda` turns an environment.yml into a requirements file."""
