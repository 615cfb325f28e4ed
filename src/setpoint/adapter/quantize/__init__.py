"""Frozen weights in 4 or 8 bits, dequantized in each forward and backward pass."""
