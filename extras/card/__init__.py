"""Model cards: `submit.py card RUN` describes a run in the format of the Hugging Face Hub.

docs/how-to/model_card.md
"""
