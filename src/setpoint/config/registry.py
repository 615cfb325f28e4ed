"""Presets and modifiers by name, with their parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, MutableMapping
from types import FrameType
from typing import Any, TypeVar, cast

from .base import Config
from .catalogue import Catalogue
from .errors import Invalid, SetpointError, several
from .files.plain import PlainScalar
from .origin import MODIFIER, PRESET, Origin, running
from .suggest import FORGOTTEN, did_you_mean

P = TypeVar("P", bound=Callable[..., Config])
M = TypeVar("M", bound=Callable[..., Config])

presets: Catalogue[Callable[..., Config]] = Catalogue()
modifiers: dict[str, Callable[..., Config]] = {}


def preset(function: P) -> P:
    """Register a function that returns a fresh config, under its own name.

    Arguments:
        function: takes its parameters, which have defaults, if it has any; its docstring's first
            line is shown by `list`.

    Returns:
        the function itself, so that other presets can call it and change the result.

    Raises:
        TypeError: if another function has the name already; a module may be loaded again.
    """
    return _register(presets, function, "preset")


def modifier(function: M) -> M:
    """Register a function from config to config, under its own name.

    Arguments:
        function: takes the draft and, as keywords with defaults, its parameters.

    Returns:
        the function itself.

    Raises:
        TypeError: if another function has the name already; a module may be loaded again.
    """
    return _register(modifiers, function, "modifier")


def _register(table: MutableMapping[str, Any], function: Any, kind: str) -> Any:
    name = function.__name__.replace("_", "-")
    other = table.get(name)
    if other is not None and other.__module__ != function.__module__:
        raise TypeError(f"there is a {kind} {name!r} already, in {other.__module__}")
    if other is not None and _beside(other, function, sys._getframe(2)):  # pyright: ignore[reportPrivateUsage]
        line = other.__code__.co_firstlineno
        raise TypeError(
            f"{function.__module__} defines two {kind}s {name!r}, the first of them in line {line}"
        )
    table[name] = function
    return function


def _beside(other: Any, function: Any, frame: FrameType) -> bool:
    """Whether the piece of code that defines one function defines another one as well.

    A module that is loaded again, or a cell of a notebook that is run again, is another piece.
    """
    code = getattr(other, "__code__", None)
    again = code is None or code is getattr(function, "__code__", None)
    return not again and any(constant is code for constant in frame.f_code.co_consts)


def summary(function: Callable[..., object]) -> str:
    """The first line of a function's docstring.

    Arguments:
        function: a preset or modifier.

    Returns:
        the line, or the empty text.
    """
    return (function.__doc__ or "").strip().partition("\n")[0]


def parameters_of(function: Callable[..., object], skip: int = 0) -> list[dict[str, Any]]:
    """The parameters of a preset or modifier.

    Arguments:
        function: the function.
        skip: how many of the first ones are none: the config that a modifier changes.

    Returns:
        for each its `name` and, if it has one, its `default`.
    """
    import inspect

    parameters = list(inspect.signature(function).parameters.values())[skip:]
    return [
        {"name": each.name} | ({} if each.default is each.empty else {"default": each.default})
        for each in parameters
    ]


def preset_named(text: str) -> str | None:
    """The registered preset that a text names, with or without parameters.

    Arguments:
        text: for instance `tiny`, `my_preset` or `tiny(width=64)`.

    Returns:
        the name it is registered under, or None.
    """
    name = text.partition("(")[0].strip().replace("_", "-")
    return name if name in presets else None


def call_preset(text: str) -> Config:
    """Make the config of a preset; its assignments carry the preset as origin.

    Arguments:
        text: the preset's name, with parameters in parentheses if it gets any; hyphens and
            underscores are the same.

    Returns:
        a fresh draft.

    Raises:
        SetpointError: if there is no such preset, or it cannot take the parameters.
    """
    name, opened, inside = text.partition("(")
    function = presets.get(name.strip().replace("_", "-"))
    if function is None:
        raise SetpointError(unknown("preset", name, presets))
    return call_source(function, text, f"the preset {text!r}", inside if opened else ")")


def call_source(function: Callable[..., object], text: str, title: str, inside: str) -> Any:
    """Call a function that makes a config.

    Arguments:
        function: the function.
        text: what was typed, for origins.
        title: what it is, for errors.
        inside: its parameters as typed, up to the closing parenthesis.

    Returns:
        what it returns.

    Raises:
        SetpointError: if it cannot take the parameters, or fails.
    """
    arguments = _read_arguments(function, inside, 0, title, text.partition("(")[0])
    from .user_code import call_user_function

    with running(PRESET, text):
        return call_user_function(function, title, **arguments)


def call_modifier(text: str, draft: Config) -> Config:
    """Apply a modifier such as `smoke`, `smoke(steps=5)` or `module:function`.

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
    if ":" in name:
        from .user_code import find_user_function

        function = find_user_function(name)
    elif (known := modifiers.get(name.replace("_", "-"))) is not None:
        function = known
    else:
        raise SetpointError(unknown("modifier", name, modifiers))
    title = f"the modifier {text!r}"
    arguments = _read_arguments(function, inside if opened else ")", 1, title, name)
    from .user_code import call_user_function

    with running(MODIFIER, text):
        result: object = call_user_function(function, title, draft, **arguments)
    if not isinstance(result, type(draft)):
        from .compose import not_of

        said = not_of(result, type(draft)) if isinstance(result, Config) else f"{result!r}"
        raise SetpointError(f"the modifier {name!r} must return the config, got {said}")
    return result


def _read_arguments(
    function: Callable[..., object], inside: str, skip: int, title: str, name: str
) -> dict[str, Any]:
    try:
        return _arguments(function, inside, skip)
    except Invalid as error:
        # The text as typed may hold what must not be repeated.
        secret = any(part.secret for part in error.parts)
        shown = f"{title.rpartition(' ')[0]} {name!r}".strip() if secret else title
        reasons = "; ".join(part.message for part in error.parts)
        raise SetpointError(f"{shown}: {reasons}") from None


def _arguments(function: Callable[..., object], inside: str, skip: int) -> dict[str, Any]:
    """What is typed between parentheses as keyword arguments, past the first `skip` of them."""
    if not inside.rstrip().endswith(")"):
        raise Invalid("the parameters are not closed by )")
    if not inside.strip(" )") and not skip and not _takes_arguments(function):
        return {}
    import inspect

    from .layers.flow import parse_flow
    from .types.compiler import compile_annotation

    given: Any = parse_flow(PlainScalar("{" + inside.rstrip()[:-1] + "}"))
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())[skip:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {each.name: each for each in parameters if each.kind in named}
    result: dict[str, Any] = {}
    errors: list[Invalid] = []
    for key, value in cast(Mapping[str, object], given).items():
        if key not in known:
            names = ", ".join(known) or "none"
            errors.append(Invalid(f"unknown parameter {key!r}; it takes: {names}"))
            continue
        annotation = known[key].annotation
        free = annotation is inspect.Parameter.empty
        kind = compile_annotation(Any if free else annotation, f"{function.__name__}({key})")
        try:
            result[key] = kind.read(value, Origin(MODIFIER, function.__name__))
        except Invalid as error:
            valid = f"; valid: {', '.join(error.valid)}" if error.valid else ""
            hint = f". {error.hint}" if error.hint else ""
            message = f"parameter {key!r} {error.message}{valid}{hint}"
            errors.append(Invalid(message, secret=error.secret))
    missing = [name for name, p in known.items() if p.default is p.empty and name not in given]
    if missing:
        errors.append(Invalid(f"needs a value for {', '.join(missing)}"))
    if errors:
        raise several(errors)
    return result


def _takes_arguments(function: Any) -> bool:
    # Most presets take none, and `inspect` is not free to import.
    code = getattr(function, "__code__", None)
    return code is None or bool(code.co_argcount + code.co_kwonlyargcount)


def unknown(kind: str, name: str, table: Mapping[str, object]) -> str:
    """What to say about a name that nothing is registered under.

    Arguments:
        kind: what was looked for, in words.
        name: as typed.
        table: what there is.

    Returns:
        the message, with the nearest name.
    """
    meant = did_you_mean(name, table, " ")
    if "," in name and all(part.strip().replace("_", "-") in table for part in name.split(",")):
        each = " ".join(f"--with {part.strip()}" for part in name.split(","))
        meant = f" Repeat the option: {each}." if kind == "modifier" else ""
    if not meant and name.strip().replace("-", "_").isidentifier():
        meant = f" {FORGOTTEN}."
    return f"there is no {kind} {name!r}.{meant} Known: {', '.join(sorted(table)) or 'none'}"
