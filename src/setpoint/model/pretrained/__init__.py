"""Import and export of models in the format of Hugging Face."""
