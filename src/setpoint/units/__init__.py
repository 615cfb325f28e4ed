"""Quantities of training as values of fields: counts of steps, tokens and time, sizes, dtypes.

Clients of the configuration kernel, which knows nothing of them.
"""

from typing import TYPE_CHECKING, Any

from .quantity import Duration, Length, Period

if TYPE_CHECKING:
    from .dtype import DType as DType
    from .size import ByteSize as ByteSize

# Those that few configurations hold are imported on first use.
_LAZY = {"ByteSize": "setpoint.units.size", "DType": "setpoint.units.dtype"}

__all__ = ["ByteSize", "DType", "Duration", "Length", "Period"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value
