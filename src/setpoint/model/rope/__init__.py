"""Rotary positions and the rules that stretch them."""
