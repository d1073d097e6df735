"""Scaling studies: `submit.py scale` trains on several numbers of nodes, and reports the efficiency.

docs/how-to/scaling_study.md
"""
