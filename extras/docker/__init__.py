"""The runtimes docker and podman."""
