"""What components share: descriptions of parameters, batches, and what models give."""
