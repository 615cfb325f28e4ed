"""Results that recomputation takes from the first pass in place of communicating again."""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from typing import Any

from torch import Tensor


class Messages:
    """Results of one pass through a layer, in order, for the second pass through it."""

    def __init__(self) -> None:
        self.results: deque[tuple[Any, ...]] = deque()
        self.is_second = False


saved: ContextVar[Messages | None] = ContextVar("saved", default=None)
"""Where the pass that runs here keeps its results; None: it keeps none."""


def save_result(*result: Any) -> None:
    """Keep what ranks have exchanged, if this pass is to."""
    messages = saved.get()
    if messages is not None and not messages.is_second:
        # Views without gradients: the pass that reads them makes a graph of its own.
        kept = (each.detach() if isinstance(each, Tensor) else each for each in result)
        messages.results.append(tuple(kept))


def is_second_pass() -> bool:
    """Whether results come from a first pass, so that nothing needs to be sent."""
    messages = saved.get()
    return messages is not None and messages.is_second


def saved_result() -> tuple[Any, ...] | None:
    """The next result of the first pass; None: this is the first, or it kept none."""
    messages = saved.get() if is_second_pass() else None
    return None if messages is None else messages.results.popleft()
