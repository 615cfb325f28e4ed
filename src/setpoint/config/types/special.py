"""Types that bring their own reading and writing, and the free area."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

from .base import FieldType

if TYPE_CHECKING:
    from ..origin import Origin


class Scalar(Protocol):
    """A value class that can be a field's type: `Period`, `Duration`, `Secret` and the like.

    `__setpoint_scalar__` describes it in words. `__setpoint_json_schema__`, a schema of what `read`
    takes from a file, may stand beside it, for editors.
    """

    __setpoint_scalar__: str

    @classmethod
    def read(cls, value: object) -> Self:
        """Make a value from what a layer holds.

        Arguments:
            value: an instance, a text, a number or a list.

        Returns:
            the value.

        Raises:
            Invalid: if it cannot be read.
        """
        ...

    def dump(self) -> Any:
        """The value in plain data.

        Returns:
            what `read` makes an equal value of.
        """
        ...


class ScalarType(FieldType):
    """A field whose class reads and writes its own values.

    Arguments:
        cls: the value class; its `__setpoint_scalar__` describes it in words.
    """

    __slots__ = ("cls",)

    def __init__(self, cls: type[Scalar]) -> None:
        self.cls = cls

    def describe(self) -> str:
        """See `FieldType.describe`."""
        return self.cls.__setpoint_scalar__

    def is_secret(self) -> bool:
        """See `FieldType.is_secret`."""
        return getattr(self.cls, "__setpoint_secret__", False)

    def candidates(self) -> tuple[str, ...]:
        """See `FieldType.candidates`."""
        return getattr(self.cls, "__setpoint_candidates__", ())

    def read(self, value: object, origin: Origin) -> Any:
        """See `FieldType.read`."""
        return self.cls.read(value)

    def dump(self, value: Scalar) -> Any:
        """See `FieldType.dump`."""
        return value.dump()


class FreeType(FieldType):
    """The user's own area: any keys, any plain values."""

    __slots__ = ()

    def describe(self) -> str:
        """See `FieldType.describe`."""
        return "any keys with plain values"

    def read(self, value: object, origin: Origin) -> Any:
        """See `FieldType.read`."""
        from ..free import Free

        return Free.read(value, origin)

    def dump(self, value: Any) -> Any:
        """See `FieldType.dump`."""
        return value.dump()

    def map(self, value: Any, function: object, frozen: bool) -> Any:
        """See `FieldType.map`."""
        return value.copy(frozen)


class AnyType(FieldType):
    """Plain data of any kind, where a field is declared as `Any` or `object`."""

    __slots__ = ()

    def describe(self) -> str:
        """See `FieldType.describe`."""
        return "plain data"

    def read(self, value: object, origin: Origin) -> Any:
        """See `FieldType.read`."""
        from ..free import plain_value
        from ..literal import literal

        plain = plain_value(value)
        return literal(plain) if isinstance(plain, str) else plain

    def dump(self, value: Any) -> Any:
        """See `FieldType.dump`."""
        from ..free import listed
        from ..literal import escaped

        # Texts inside a list or mapping are taken as they are.
        return escaped(value) if isinstance(value, str) else listed(value)
