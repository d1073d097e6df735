"""Everything that an air-gapped machine needs, in one directory."""
