"""Python packages: venv, overlay, lock file, wheelhouse."""
