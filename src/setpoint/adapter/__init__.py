"""Adapters: few trained parameters on top of a frozen base, which may be quantized."""
