"""Sweeps of training runs: points, the launcher, the record, search, and comparison."""

import sys

from setpoint.config.lazy import CallablePackage, exports

__getattr__, __dir__, __all__ = exports(__name__)
sys.modules[__name__].__class__ = CallablePackage
