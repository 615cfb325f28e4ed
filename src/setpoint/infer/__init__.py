"""Inference: text from a trained model."""

import sys

# It sets up threads, before the modules of this package load torch.
import setpoint.train  # noqa: F401
from setpoint.config.lazy import CallablePackage, exports

__getattr__, __dir__, __all__ = exports(__name__)
sys.modules[__name__].__class__ = CallablePackage
