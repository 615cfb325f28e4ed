"""The model: a decoder-only transformer, its configuration, initialization and size."""

from setpoint.config.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)
