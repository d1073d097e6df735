"""The check of every node of a job, and of the communication between its ranks."""
