"""Profiles of training."""
