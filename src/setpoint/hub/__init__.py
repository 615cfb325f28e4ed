"""The Hugging Face hub."""
