"""Pages of the reference, one module each; `docs/write_reference.py` calls them."""
