"""Fast imports from an overlay: an index of its modules, and what an import reads, read ahead.

docs/explanation/parallel_file_systems.md#the-module-index
"""
