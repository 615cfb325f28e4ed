"""Callables that imported components of the tests name."""

from collections.abc import Callable
from typing import Any, Literal


class Part:
    """A part."""

    def __init__(self, size: int, *, rate: float = 0.1) -> None:
        self.size = size
        self.rate = rate

    class Inner:
        """A class inside a class."""


class Whole:
    """Takes all kinds of arguments."""

    def __init__(
        self,
        size: int,
        rate: float | Part = 0.1,
        mode: Literal["a", "b"] = "a",
        betas: tuple[float, float] = (0.9, 0.99),
        part: Part | None = None,
        parts: list[Part] | None = None,
        by_name: dict[str, Part] | None = None,
        act: Callable[[int], int] | None = None,
        free=(),
    ) -> None:
        self.given = dict(locals())


def anything(**options: Any) -> dict[str, Any]:
    """Take any names."""
    return options


def by_position(size: int, /, rate: float = 1.0) -> tuple[int, float]:
    """Take its first by position only."""
    return size, rate


def failing(size: int) -> None:
    """Raise."""
    raise ValueError(f"no size is right, {size} neither")


def double(number: int) -> int:
    """Double."""
    return 2 * number


def made_locally() -> Callable[[], None]:
    """Give a function that no path leads to."""

    def local() -> None: ...

    return local


NUMBER = 3
