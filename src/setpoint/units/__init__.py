"""Quantities of training as values of fields: counts of steps, tokens and time, sizes, dtypes.

The configuration kernel does not depend on them.
"""

from .dtype import DType
from .quantity import Duration, Length, Period
from .size import ByteSize

__all__ = ["ByteSize", "DType", "Duration", "Length", "Period"]
