"""What checkpoints cost: time, memory and size on disk."""
