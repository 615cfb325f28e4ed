"""One optimizer step: the loop, the objective, the learning rate and the position."""
