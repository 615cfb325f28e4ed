"""Where tensors are kept, and what is recomputed."""
