"""Number formats of weights, computation, gradients and optimizer state."""
