"""From configs to objects: owners are imported when they are built, and shared nodes built once."""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..values.node import Node
from ..words.errors import SetpointError
from ..words.names import did_you_mean
from ..words.text import for_error

Built = dict[int, tuple[Node, dict[str, Any], Any]]
_built: ContextVar[Built | None] = ContextVar("setpoint_built", default=None)


@contextmanager
def building() -> Generator[None]:
    """Build within this block as if it were one `build`: each config object gives one object.

    For code that builds the parts of a configuration itself, one after another, some of which may
    be one config object in several places. Blocks may be nested; the outermost one counts.
    """
    if _built.get() is not None:
        yield
        return
    token = _built.set({})
    try:
        yield
    finally:
        _built.reset(token)


def build(config: Node, runtime: dict[str, Any]) -> Any:
    """Construct what a config describes.

    Within one outermost call, or one `with building():`, a config object that is built in two
    places gives one object.

    Returns:
        `owner(config, **runtime)`.

    Raises:
        SetpointError: if the class has no owner, or one config is built twice with different
            run-time arguments.
    """
    built = _built.get()
    if built is None:
        with building():
            return build(config, runtime)
    known = built.get(id(config))
    if known is not None:
        _, before, result = known
        if before.keys() != runtime.keys() or not all(_same(before[k], runtime[k]) for k in before):
            raise SetpointError(
                f"{type(config).__name__} stands in two places and is built with different "
                f"run-time arguments; give each place a config of its own"
            )
        return result
    result = owner_of(type(config))(config, **runtime)
    # The config is kept beside the result: its identity must not be given to another object.
    built[id(config)] = (config, runtime, result)
    return result


def _same(one: Any, other: Any) -> bool:
    """Whether two run-time arguments are one object, or texts that say the same."""
    return one is other or (type(one) is type(other) is str and one == other)


def owner_of(cls: type[Node]) -> Any:
    """Import what a config class constructs.

    Raises:
        SetpointError: if there is none, or it cannot be imported.
    """
    path = cls.__setpoint__.owner
    if path is None:
        raise SetpointError(
            f"{cls.__module__}.{cls.__qualname__} cannot be built: it names no owner; nest it in "
            f"its owner as `class Config`, or give owner='module:name'"
        )
    title = f"{cls.__module__}.{cls.__qualname__}: its owner is {path!r}"
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise SetpointError(f"{title}, which is not of the form 'module:name'")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            raise SetpointError(
                f"{cls.__name__} needs the package {error.name!r}, which is not installed; "
                f"install the package"
            ) from None
        raise SetpointError(f"{title}, but there is no module {error.name!r}") from None
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            meant = did_you_mean(part, [key for key in dir(found) if key[:1] != "_"], " ")
            where = getattr(found, "__name__", module)
            raise SetpointError(f"{title}, but {where} has no {part!r}.{meant}") from None
    if not callable(found):
        raise SetpointError(
            f"{title}, which is {for_error(found)}; it must be a class or a function"
        )
    return found
