"""Evaluation of the model while it trains."""
