"""Attention: its forms, what each position sees, and the backends that compute it."""
