"""What type checkers know of a config class beside its fields: what it builds, and `evolve`.

Nothing here does anything at run time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

C = TypeVar("C")
P = ParamSpec("P")
Shape = TypeVar("Shape")
Result = TypeVar("Result")

if TYPE_CHECKING:
    from functools import partial

    from .base import Config

    Owner = TypeVar("Owner", covariant=True)
    Made = TypeVar("Made", covariant=True)

    if sys.version_info >= (3, 13):

        class Replaceable(Protocol[P, Made]):
            """A class whose fields type checkers know as the keywords of `__replace__`."""

            def __replace__(self, *args: P.args, **kwargs: P.kwargs) -> Made: ...

    class Bare(Protocol[P, Made]):
        """A class that can be made without any arguments, or with some."""

        @overload
        def __call__(self) -> Made: ...
        @overload
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Made: ...

    class Evolve:
        """`Config.evolve`: takes any of the fields, by name, and returns a draft of the class.

        From Python 3.13 on, checkers make `__replace__` from the fields, which says exactly this.
        Before, the constructor says it as well, unless it has required fields.
        """

        if sys.version_info >= (3, 13):

            def __get__(self, instance: Replaceable[P, C], owner: object) -> Callable[P, C]: ...
        else:

            @overload
            def __get__(self, instance: object, owner: Bare[P, C]) -> Callable[P, C]: ...
            @overload
            def __get__(self, instance: C, owner: object) -> Callable[..., C]: ...
            def __get__(self, instance: Any, owner: Any) -> Any: ...

    class Builds(Config, Generic[Owner]):
        """A `Config` whose `build` returns what stands in the brackets."""

        def build(self, **runtime: Any) -> Owner: ...

    class Component(Generic[Shape, Result]):
        """A field that holds a config and takes a `partial` as well; see `component`."""

        @overload
        def __get__(self, instance: None, owner: object) -> Any: ...
        @overload
        def __get__(self, instance: object, owner: object) -> Shape: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...
        def __set__(self, instance: object, value: Shape | partial[Result]) -> None: ...

else:

    class Builds:
        """A `Config` whose `build` returns what stands in the brackets: `Builds["Model"]`.

        At run time it is `Config` itself.
        """

        def __class_getitem__(cls, owner: object) -> type:
            from .base import Config

            return Config

    class Component(Generic[Shape, Result]):
        """A field that holds a config and takes a `partial` as well; see `component`."""
