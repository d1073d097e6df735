"""The check of how the ranks of a job communicate.

docs/how-to/diagnose.md#check-a-slow-or-hanging-job
"""
