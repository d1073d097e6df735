"""The script of doctor.py --job."""

from extras.job_check.diagnosis import job_lines

KINDS = {"doctor_job": lambda env: job_lines(env._replace(purpose="job"))}
