"""The check of every node of a job, and of the communication between its ranks.

docs/how-to/diagnose.md#check-a-slow-or-hanging-job
"""
