"""The pages of the reference, a module each; `docs/write_reference.py` calls them."""
