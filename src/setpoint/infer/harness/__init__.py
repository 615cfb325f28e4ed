"""Tasks of lm-evaluation-harness, asked of our models."""
