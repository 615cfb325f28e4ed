"""Inference: text from a trained model."""

import setpoint.train  # noqa: F401 - sets up threads, before the modules of this package load torch
