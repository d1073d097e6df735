"""The features around the core, a directory each: delete those that you do not use."""
