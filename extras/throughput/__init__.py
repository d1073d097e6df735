"""Throughput: the end of a job compares its tokens per second with the last good run of its kind.

docs/how-to/slow_runs.md
"""
