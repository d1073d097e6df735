"""Everything that an air-gapped machine needs, in one directory.

docs/how-to/air_gap.md
"""
