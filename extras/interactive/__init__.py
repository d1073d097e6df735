"""Interactive work: JupyterLab and an SSH server for editors on a compute node, for job scripts."""
