"""Values that a file gives to an axis, kept as they were written until a field reads them."""

from __future__ import annotations

from typing import Any, Self

from setpoint.config import Scalar
from setpoint.sweep_space.setting import plain_value


class Raw(Scalar):
    """Any value of a file; the field that it is for decides what it means."""

    __setpoint_scalar__ = "a value for the field"
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    @classmethod
    def read(cls, value: object) -> Self:
        """Take a value as it is."""
        return cls(value.value if isinstance(value, Raw) else value)

    def dump(self) -> Any:
        """The value in plain data."""
        return plain_value(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raw) and repr(other) == repr(self)  # 1 is not 1.0

    __hash__ = Scalar.__hash__
