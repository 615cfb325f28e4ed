"""`Scalar`: the base of value classes that can be a field's type, such as `Period` and `Secret`."""

from __future__ import annotations

from typing import Any, Self, cast


class Scalar:
    """A value that reads itself from a file or a flag, and writes itself as plain data.

    Values with the same plain data are equal. A subclass gives `__setpoint_scalar__`, which
    describes it in words and is what marks such a class, also one without this base; and
    `__setpoint_json_schema__`, a schema of what `read` takes from a file, for editors.
    """

    __slots__ = ()
    __setpoint_scalar__: str

    @classmethod
    def read(cls, value: Any) -> Self:
        """Make a value from what a layer holds.

        Raises:
            Invalid: if it cannot be read.
        """
        return value if isinstance(value, cls) else cast(Any, cls)(value)

    def dump(self) -> Any:
        """The value in plain data, of which `read` makes an equal value."""
        raise AssertionError(f"{type(self).__name__} does not say what it is in plain data")

    def __str__(self) -> str:
        return str(self.dump())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dump()!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.dump() == other.dump()

    def __hash__(self) -> int:
        return hash(str(self.dump()))
