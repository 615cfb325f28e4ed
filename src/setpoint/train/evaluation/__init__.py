"""Judging the model while it trains."""
