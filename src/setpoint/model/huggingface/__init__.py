"""Models of the transformers library, trained as they are."""
