"""Container images: build, download, activate, list."""
