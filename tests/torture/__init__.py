"""Runs that are disturbed in every way that a test can arrange, and then compared."""
