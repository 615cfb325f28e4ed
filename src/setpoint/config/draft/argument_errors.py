"""Errors for wrong arguments of the functions of the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..schema.class_info import ConfigMeta
from ..values.node import Node, is_frozen
from ..words.errors import SetpointError
from ..words.text import for_error


def need_config(value: object, function: str) -> None:
    """Refuse what is no config.

    Raises:
        SetpointError: if it is anything but an instance of a config class.
    """
    if isinstance(value, Node):
        return
    hint = ""
    given: Any = value
    if isinstance(given, ConfigMeta):
        hint = f"; {given.__name__} is the class, {given.__name__}() an instance"
    elif isinstance(getattr(given, "draft", None), Node):
        hint = "; a composition is resolved by its own resolve()"
    elif isinstance(given, dict):
        hint = "; make one of its class, or put the values into a file and compose it"
    raise SetpointError(f"{function} takes a configuration, got {described(value)}{hint}")


def need_class(value: object, function: str) -> None:
    """Refuse what is no config class.

    Raises:
        SetpointError: if it is anything but a class of configurations.
    """
    if isinstance(value, ConfigMeta):
        return
    given: Any = value
    hint = f"; give its class, {type(given).__name__}" if isinstance(given, Node) else ""
    raise SetpointError(
        f"{function} takes the class of a configuration, got {described(value)}{hint}"
    )


def need_resolved(config: object, function: str) -> None:
    """Refuse what is no resolved config.

    Raises:
        SetpointError: for drafts, and for what is no config at all.
    """
    need_config(config, function)
    if isinstance(config, Node) and not is_frozen(config):
        raise SetpointError(
            f"{function} takes a resolved configuration, got a draft of {type(config).__name__}; "
            f"resolve it first"
        )


def _need_texts(value: object, name: str, example: str) -> None:
    """Refuse one text where a list of texts belongs, and items that are none.

    Raises:
        SetpointError: if it is no list or tuple.
    """
    if not isinstance(value, list | tuple):
        raise SetpointError(
            f"compose: {name} takes a list, as in {name}={example}; got {described(value)}"
        )


def need_compose(
    root: object, source: object, modifiers: object, files: object, flags: object, program: object
) -> None:
    """Refuse arguments of `compose` that are of another kind.

    Raises:
        SetpointError: for the first that is wrong.
    """
    need_class(root, "compose")
    if source is not None and not isinstance(source, str):
        need_config(source, "compose: a SOURCE that is no text")
    _need_texts(modifiers, "modifiers", '["smoke"]')
    _need_texts(files, "files", '["exp.toml"]')
    _need_texts(flags, "flags", '["--lr", "0.1"]')
    if program is not None and not isinstance(program, Mapping):
        raise SetpointError(
            "compose: program takes a mapping from dotted paths to values, as in "
            f'program={{"optimizer.lr": 0.1}}; got {described(program)}'
        )


def described(value: object) -> str:
    """A value of any kind, for errors."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Node):
        return f"a {type(value).__name__}"
    return for_error(value)
