"""Presets and modifiers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from .base import Config
from .errors import Invalid, SetpointError, several
from .files.plain import PlainScalar
from .origin import MODIFIER, PRESET, Origin, running
from .suggest import nearest

P = TypeVar("P", bound=Callable[[], Config])
M = TypeVar("M", bound=Callable[..., Config])

presets: dict[str, Callable[[], Config]] = {}
modifiers: dict[str, Callable[..., Config]] = {}


def preset(function: P) -> P:
    """Register a function that returns a fresh config, under its own name.

    Arguments:
        function: takes nothing; its docstring's first line is shown by `list`.

    Returns:
        the function itself, so that other presets can call it and change the result.

    Raises:
        TypeError: if another function has the name already.
    """
    return _register(presets, function, "preset")


def modifier(function: M) -> M:
    """Register a function from config to config, under its own name.

    Arguments:
        function: takes the draft and, as keywords with defaults, its parameters.

    Returns:
        the function itself.

    Raises:
        TypeError: if another function has the name already.
    """
    return _register(modifiers, function, "modifier")


def _register(table: dict[str, Any], function: Any, kind: str) -> Any:
    name = function.__name__.replace("_", "-")
    other = table.get(name)
    if other is not None and other.__module__ != function.__module__:
        raise TypeError(f"there is a {kind} {name!r} already, in {other.__module__}")
    table[name] = function
    return function


def summary(function: Callable[..., object]) -> str:
    """The first line of a function's docstring.

    Arguments:
        function: a preset or modifier.

    Returns:
        the line, or the empty text.
    """
    return (function.__doc__ or "").strip().partition("\n")[0]


def call_preset(name: str) -> Config:
    """Make the config of a preset; its assignments carry the preset as origin.

    Arguments:
        name: the preset's name; hyphens and underscores are the same.

    Returns:
        a fresh draft.

    Raises:
        SetpointError: if there is no such preset.
    """
    function = presets.get(name.replace("_", "-"))
    if function is None:
        raise SetpointError(_unknown("preset", name, presets))
    from .user_code import call_user_function

    with running(PRESET, name):
        return call_user_function(function, f"the preset {name!r}")


def call_modifier(text: str, draft: Config) -> Config:
    """Apply a modifier such as `smoke` or `smoke(steps=5)`.

    Arguments:
        text: the modifier's name, with its parameters in parentheses if it gets any.
        draft: the config to change.

    Returns:
        the config that the modifier returned.

    Raises:
        SetpointError: if there is no such modifier, or it cannot take the parameters.
    """
    name, opened, inside = text.partition("(")
    name = name.strip()
    function = modifiers.get(name.replace("_", "-"))
    if function is None:
        raise SetpointError(_unknown("modifier", name, modifiers))
    try:
        arguments = _arguments(function, inside if opened else ")")
    except Invalid as error:
        shown = name if any(part.secret for part in error.parts) else text
        reasons = "; ".join(part.message for part in error.parts)
        raise SetpointError(f"the modifier {shown!r}: {reasons}") from None
    from .user_code import call_user_function

    with running(MODIFIER, text):
        result: object = call_user_function(function, f"the modifier {text!r}", draft, **arguments)
    if not isinstance(result, type(draft)):
        raise SetpointError(f"the modifier {name!r} must return the config, got {result!r}")
    return result


def _arguments(function: Callable[..., object], inside: str) -> dict[str, Any]:
    import inspect

    from .layers.flow import parse_flow
    from .types.compiler import compile_annotation

    if not inside.rstrip().endswith(")"):
        raise Invalid("the parameters are not closed by )")
    given: Any = parse_flow(PlainScalar("{" + inside.rstrip()[:-1] + "}"))
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    known = {parameter.name: parameter for parameter in parameters}
    result: dict[str, Any] = {}
    errors: list[Invalid] = []
    for key, value in cast(Mapping[str, object], given).items():
        if key not in known:
            names = ", ".join(known) or "none"
            errors.append(Invalid(f"unknown parameter {key!r}; it takes: {names}"))
            continue
        kind = compile_annotation(known[key].annotation, f"{function.__name__}({key})")
        try:
            result[key] = kind.read(value, Origin(MODIFIER, function.__name__))
        except Invalid as error:
            errors.append(Invalid(f"parameter {key!r} {error.message}", secret=error.secret))
    missing = [name for name, p in known.items() if p.default is p.empty and name not in given]
    if missing:
        errors.append(Invalid(f"needs a value for {', '.join(missing)}"))
    if errors:
        raise several(errors)
    return result


def _unknown(kind: str, name: str, table: Mapping[str, object]) -> str:
    close = nearest(name, table)
    meant = f" Did you mean {close[0]}?" if close else ""
    return f"there is no {kind} {name!r}.{meant} Known: {', '.join(sorted(table)) or 'none'}"
