"""One GPU: what trains how fast on it, beside plain PyTorch."""
