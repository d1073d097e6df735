"""Throughput: the end of a job compares its tokens per second with the last good run of its kind.

docs/how-to/nodes.md#slow-runs
"""
