"""Scaling studies: `submit.py scale` trains on several numbers of nodes and compares the speed.

docs/how-to/scaling_study.md
"""
