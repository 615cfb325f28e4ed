"""A config as Python source: a preset function that returns an equal one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .base import Config, chain_of, value_or_missing
from .field import MISSING
from .free import Free
from .origin import DERIVED
from .plain import minimal_items, to_minimal
from .reference import Reference

if TYPE_CHECKING:
    from .types.base import FieldType

WIDTH = 96


def to_python(config: Config, name: str = "my_preset") -> str:
    """Write a function whose result composes to an equal config.

    Only what differs from the defaults is written; derived values are left to be derived.

    Arguments:
        config: a draft or a resolved config.
        name: the function's name, a Python identifier.

    Returns:
        a module with its imports.
    """
    imports: set[tuple[str, str]] = {("setpoint.config", "preset")}
    body = _call(config, 1, imports)
    root = type(config).__name__
    modules = sorted({module for module, _ in imports})
    lines = [
        f"from {module} import {', '.join(sorted(s for m, s in imports if m == module))}"
        for module in modules
    ]
    return "\n".join(
        [*lines, "", "", "@preset", f"def {name}() -> {root}:", f"    return {body}", ""]
    )


def _call(config: Config, depth: int, imports: set[tuple[str, str]]) -> str:
    cls = type(config)
    imports.add((cls.__module__, cls.__qualname__.partition(".")[0]))
    arguments: list[str] = []
    for field, info in cls.__setpoint__.fields.items():
        value = value_or_missing(config, field)
        chain = chain_of(config, field)
        if value is MISSING or (chain and chain[-1][0].layer == DERIVED):
            continue
        standard = info.initial()
        # Compared with what stands here by default, which may not be what its class has by default.
        if standard is not MISSING and _same(info.type, value, standard):
            continue
        arguments.append(f"{field}={_literal(value, depth + 1, imports)}")
    return _bracketed(f"{cls.__qualname__}(", arguments, ")", depth)


def _same(kind: FieldType, value: Any, standard: Any) -> bool:
    if isinstance(value, Reference):
        return False
    if isinstance(value, Config) and isinstance(standard, Config):
        return type(value) is type(standard) and not to_minimal(value, standard)
    return minimal_items(kind, value) == minimal_items(kind, standard)


def _literal(value: Any, depth: int, imports: set[tuple[str, str]]) -> str:
    if isinstance(value, Config):
        return _call(value, depth, imports)
    if isinstance(value, Reference):
        return _quoted(value.text)
    if isinstance(value, Free):
        imports.add(("setpoint.config", "Free"))
        return _bracketed("Free(", [f"**{_literal(value.dump(), depth + 1, imports)}"], ")", depth)
    if isinstance(value, tuple | list):
        sequence = cast(list[Any] | tuple[Any, ...], value)
        items = [_literal(item, depth + 1, imports) for item in sequence]
        if isinstance(value, list):
            return _bracketed("[", items, "]", depth)
        return f"({items[0]},)" if len(items) == 1 else _bracketed("(", items, ")", depth)
    if isinstance(value, dict):
        entries = cast(dict[str, Any], value)
        pairs = [f"{_quoted(key)}: {_literal(v, depth + 1, imports)}" for key, v in entries.items()]
        return _bracketed("{", pairs, "}", depth)
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f"float({str(value)!r})"
    cls: Any = type(cast(object, value))
    if cls is str:
        return _quoted(cast(str, value))
    if cls in (bool, int, float, type(None)):
        return repr(value)
    if cls.__module__.partition(".")[0] == "pathlib":
        imports.add(("pathlib", "Path"))
        return f"Path({_quoted(str(value))})"
    # Enums and the kernel's own value classes; the latter are offered by the package itself.
    module = "setpoint.config" if cls.__module__.startswith("setpoint.config.") else cls.__module__
    imports.add((module, cls.__qualname__.partition(".")[0]))
    if hasattr(cls, "__members__"):
        return f"{cls.__qualname__}.{cast(Any, value).name}"
    return repr(value)


def _quoted(text: str) -> str:
    """A text as a Python literal, in double quotes where that needs no more escapes."""
    plain = repr(text)
    if plain[0] == "'" and '"' not in text and "\\" not in plain:
        return f'"{plain[1:-1]}"'
    return plain


def _bracketed(head: str, items: list[str], tail: str, depth: int) -> str:
    line = head + ", ".join(items) + tail
    if "\n" not in line and len(line) + 4 * depth <= WIDTH:
        return line
    pad = "    " * (depth + 1)
    return head + "\n" + "".join(f"{pad}{item},\n" for item in items) + "    " * depth + tail
