"""Losses and their configuration."""
