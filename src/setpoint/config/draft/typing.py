"""What type checkers know of `Config.evolve`.

Nothing here does anything at run time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

C = TypeVar("C")
P = ParamSpec("P")

if TYPE_CHECKING:
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
