"""Optimizers, gradient clipping, learning-rate schedules and their configuration."""
