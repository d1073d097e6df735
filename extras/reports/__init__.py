"""Reports of what runs have used, pages about runs, and the upload of what W&B recorded offline.

docs/how-to/jobs.md#report-page
"""
