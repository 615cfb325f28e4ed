"""Adapters: few trained parameters on a frozen base, which may be quantized."""
