"""What is kept where, and what is computed again."""
