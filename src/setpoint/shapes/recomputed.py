"""Results that recomputation takes from the first pass in place of communicating again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor


class Messages:
    """Results of one pass through a layer, in order, for the second pass through it."""

    def __init__(self) -> None:
        self.results: deque[tuple[Any, ...]] = deque()
        self.is_second = False
        self.is_sent = False
        """Whether the result of the module that runs is only sent, in the first pass alone."""
        self.is_unread = False
        """Whether what is computed now is nothing but that result."""


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


@contextmanager
def only_sent() -> Iterator[None]:
    """Say that the result of what runs within is sent, and read where messages are not saved."""
    messages = saved.get()
    if messages is None:
        yield
        return
    messages.is_sent = True
    try:
        yield
    finally:
        messages.is_sent = False


def compute_sent(compute: Callable[[], Tensor], shape: Tensor) -> Tensor:
    """Compute the result of a module; if it is only sent, it is neither saved nor recomputed.

    Arguments:
        shape: of its shape and dtype.
    """
    messages = saved.get()
    if messages is None or not messages.is_sent:
        return compute()
    if messages.is_second:
        return shape.new_empty_strided(shape.shape, (0,) * shape.dim())  # no memory, and no view
    messages.is_unread = True
    try:
        return compute()
    finally:
        messages.is_unread = False
