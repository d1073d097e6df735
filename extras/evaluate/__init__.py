"""Evaluation: `submit.py --then STACK` exports and evaluates the model once it is trained."""
