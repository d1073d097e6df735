"""The runtime enroot, whose images are SquashFS files."""
