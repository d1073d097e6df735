"""Faulty nodes: what jobs find against a node is shared with the group, and submissions exclude it.

docs/how-to/nodes.md
"""
