"""Prepared data: tokens in files that are mapped into memory, made once and kept in a cache."""
