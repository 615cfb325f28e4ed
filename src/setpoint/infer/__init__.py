"""Inference: text from a trained model."""

from setpoint.train.threads import prepare_threads

# As in `setpoint.train`: before the modules of this package load torch.
prepare_threads()
