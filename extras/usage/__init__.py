"""Usage: what a job uses of its GPUs is measured on each node, and recorded at the end."""
