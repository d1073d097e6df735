"""What a job's log says: who failed first, what the known messages mean, and what to do.

docs/how-to/diagnose.md#explain-a-failed-job
"""
