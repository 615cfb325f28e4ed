"""The plan of a job without running it: memory, traffic, time and search; and the dry run."""

import sys

from setpoint.config.lazy import CallablePackage, exports

__getattr__, __dir__, __all__ = exports(__name__)
sys.modules[__name__].__class__ = CallablePackage
