"""The check of a site.toml against what its machine reports, and a description of a new machine.

docs/how-to/diagnose.md#check-a-sites-description
"""
