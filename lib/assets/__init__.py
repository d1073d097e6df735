"""Models, tokenizers and datasets of the Hugging Face Hub."""
