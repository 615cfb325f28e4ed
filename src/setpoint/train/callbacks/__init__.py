"""Callbacks of training: save, evaluate, log, profile."""
