"""Remote files: the Hugging Face Hub, and URLs of fsspec."""
