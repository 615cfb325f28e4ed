"""Decorators for the methods of a config class that the engine calls at resolve."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .problem import Problem

# The attributes by which a config class finds its marked methods.
DERIVE = "__setpoint_derive__"
CHECK = "__setpoint_check__"
DEAD = "__setpoint_dead__"

F = TypeVar("F", bound=Callable[..., Any])
Check = TypeVar("Check", bound=Callable[..., Iterable[Problem]])


def derive(path: str) -> Callable[[F], F]:
    """Mark the method that computes a derived field from other fields.

    What the method reads is recorded, so that `why` can name it and a cycle can be shown.

    Arguments:
        path: the field, relative to the class: `"ffn_dim"`, or `"model.vocab_size"` for a field
            of a section below.

    Returns:
        the decorator.
    """

    def mark(function: F) -> F:
        setattr(function, DERIVE, path)
        return function

    return mark


def check(function: Check) -> Check:
    """Mark a method that yields the problems of a config whose values are all known.

    Arguments:
        function: a method without arguments that yields a `Problem` for each finding, with
            paths relative to its own section.

    Returns:
        the method itself.
    """
    setattr(function, CHECK, True)
    return function


def dead(*names: str) -> Callable[[F], F]:
    """Mark a method that says when fields have no effect, so that setting them is an error.

    Arguments:
        names: the fields of the class that the answer is about.

    Returns:
        a decorator for a method that returns a reason, or None while the fields are read.
    """

    def mark(function: F) -> F:
        setattr(function, DEAD, names)
        return function

    return mark
