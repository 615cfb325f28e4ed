"""torch.compile of the model."""
