"""Models of Hugging Face's formats: read from directories and the hub, and written back."""
