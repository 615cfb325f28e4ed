"""A section as derive and dead methods see it: what they read is computed on demand."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from .base import Config
from .errors import SetpointError
from .free import Free

if TYPE_CHECKING:
    from .determine import Determination


class ReadOnlyError(SetpointError):
    """A method that is to compute something has tried to change the configuration."""


class View:
    """A section as a method sees it: reads are recorded and computed on demand, writes refused.

    Arguments:
        determination: the running computation.
        section: the section.
    """

    __slots__ = ("_determination", "_section")

    _determination: Determination
    _section: Config

    def __init__(self, determination: Determination, section: Config) -> None:
        object.__setattr__(self, "_determination", determination)
        object.__setattr__(self, "_section", section)

    def __getattr__(self, name: str) -> Any:
        cls = type(self._section)
        if name in cls.__setpoint__.fields:
            return self._wrapped(self._determination.value(self._section, name))
        attribute: Any = getattr(cls, name)
        if isinstance(attribute, property) and attribute.fget:
            return attribute.fget(self)
        if isinstance(attribute, types.FunctionType):
            return types.MethodType(attribute, self)
        return attribute

    def __setattr__(self, name: str, value: object) -> None:
        raise ReadOnlyError(
            f"{type(self._section).__name__}.{name} cannot be set here: the method only reads, and "
            f"returns its answer"
        )

    __delattr__ = __setattr__  # pyright: ignore[reportAssignmentType]

    def _wrapped(self, value: Any) -> Any:
        """The value with every section in it, also those in lists and mappings, as a view."""
        if isinstance(value, Config):
            return View(self._determination, value)
        if isinstance(value, tuple | list):
            return tuple(map(self._wrapped, cast(Sequence[Any], value)))
        if isinstance(value, dict):
            items = cast(dict[str, Any], value).items()
            return {key: self._wrapped(item) for key, item in items}
        # A key of the area that nobody has set reads as an empty area, which must not stay there.
        return value.copy(frozen=False) if isinstance(value, Free) else value

    @property
    def __setpoint_section__(self) -> Config:
        return self._section

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Lets a deriving method ask isinstance(self.schedule, Cosine).
        return type(self._section)
