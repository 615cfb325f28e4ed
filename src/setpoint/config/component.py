"""A field for something that is built: one of a family's configs, or a `partial` of anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .field import field
from .role import Role


def component(
    *,
    factory: Callable[[], Any],
    role: Role | None = None,
    tags: Sequence[str] = (),
    also_called: Sequence[str] = (),
) -> Any:
    """Declare a field that takes `setpoint.partial` as well as its family's configs.

    It goes with the annotation `Component[Family, Result]`, where `Result` is what the callable
    makes: type checkers then take both when the field is set, and see the family when it is read.

        optimizer: Component[OptimizerConfig, Optimizer] = component(factory=AdamW)

    Arguments:
        factory: makes the default.
        role, tags, also_called: as for `field`.

    Returns:
        a marker that the config class replaces.
    """
    return field(factory=factory, role=role, tags=tags, also_called=also_called)
