"""Estimates: `submit.py estimate` tells the GPU memory of a training, and which layouts fit.

docs/how-to/estimate_memory.md
"""
