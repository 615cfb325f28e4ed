"""Setpoint's models beside those of transformers and plain PyTorch."""
