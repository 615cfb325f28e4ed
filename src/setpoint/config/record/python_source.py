"""A config as Python source: a preset function that returns an equal config."""

from __future__ import annotations

import keyword
import sys
from enum import Enum, Flag
from typing import TYPE_CHECKING, Any, cast

from ..draft.config import Config
from ..draft.walk import given, minimal_items, sections, shared_places, to_minimal
from ..values.containers import Free
from ..values.reference import Reference, Template
from ..values.user_code import importable_name
from ..words.plain_data import MISSING, LiteralText, escaped, flag_names, same

if TYPE_CHECKING:
    from ..types.base import FieldType
    from ..words.names import Path

WIDTH = 96
INDENT = "    "
RESERVED = frozenset({"Free", "Path", "float", "preset", "re", "ref"})


def to_python(config: Config, name: str = "my_preset") -> str:
    """Write a function whose result composes to an equal config.

    Only differences from the defaults are written; derived values are omitted, and references are
    written as references. A shared section is a local variable.
    """
    writer = _Writer(config)
    body = writer.call(config, 1)
    root = type(config).__name__
    imports = writer.imports | {("setpoint.config", "preset")}
    lines = sorted(f"import {module}" for module, symbol in imports if not symbol)
    for module in sorted({module for module, symbol in imports if symbol}):
        symbols = sorted(symbol for m, symbol in imports if m == module and symbol)
        lines.append(f"from {module} import {', '.join(symbols)}")
    shared = [f"{INDENT}{variable} = {text}" for variable, text in writer.variables.values()]
    head = [*lines, "", "", "@preset", f"def {name}() -> {root}:"]
    return "\n".join([*head, *shared, f"{INDENT}return {body}", ""])


class _Writer:
    """Writes the sections of one tree."""

    def __init__(self, root: Config) -> None:
        self.imports: set[tuple[str, str]] = set()
        # Shared sections by identity, with their variable and expression, inner ones first.
        self.variables: dict[int, tuple[str, str]] = {}
        places = dict(sections(root))
        first = set(shared_places(root).values())
        self.shared = {id(places[path]): path for path in first}
        self.taken = {type(section).__qualname__.partition(".")[0] for section in places.values()}

    def call(self, config: Config, depth: int) -> str:
        cls = type(config)
        self._import(cls)
        arguments: list[str] = []
        for field, info in cls.__setpoint__.fields.items():
            value = given(config, field)
            if value is MISSING:
                continue
            default = info.initial()
            # Compared with the default at this path, not with the class's default.
            if default is MISSING or not self._same(info.type, value, default):
                literal = self._value(value, depth + 1)
                arguments.append(f"{field}={literal}")
        return _bracketed(f"{cls.__qualname__}(", arguments, ")", depth)

    def _same(self, kind: FieldType, value: Any, default: Any) -> bool:
        if isinstance(value, Reference) or (self.shared and self._holds_shared(kind, value)):
            return False
        if isinstance(value, Config) and isinstance(default, Config):
            return type(value) is type(default) and not to_minimal(value, default)
        return same(minimal_items(kind, value), minimal_items(kind, default))

    def _holds_shared(self, kind: FieldType, value: Any) -> bool:
        inside = (((), value),) if isinstance(value, Config) else ()
        if isinstance(value, tuple | list | dict) and kind.nested:
            inside = kind.sections(value)
        return any(id(part) in self.shared for _, top in inside for _, part in sections(top))

    def _section(self, section: Config, depth: int) -> str:
        path = self.shared.get(id(section))
        if path is None:
            return self.call(section, depth)
        if id(section) not in self.variables:
            text = self.call(section, 1)
            self.variables[id(section)] = self._variable(path), text
        return self.variables[id(section)][0]

    def _variable(self, path: Path) -> str:
        """A name for a local variable, taken from the field that first contains the section."""
        parts = [part for part in map(str, path) if part.isascii() and part.isidentifier()]
        stem = name = (parts or ["shared"])[-1]
        number = 1
        taken = self.taken | {variable for variable, _ in self.variables.values()}
        while name in taken or keyword.iskeyword(name) or name in RESERVED:
            number += 1
            name = f"{stem}_{number}"
        return name

    def _import(self, cls: type) -> None:
        name = cls.__qualname__.partition(".")[0]
        module = importable_name(cls.__module__)
        if module.startswith("setpoint.config.") and name in sys.modules["setpoint.config"].__all__:
            module = "setpoint.config"
        self.imports.add((module, name))

    def _value(self, value: Any, depth: int) -> str:
        """The expression for a field's value, or for an item of it."""
        if isinstance(value, Config):
            return self._section(value, depth)
        if isinstance(value, dict):
            entries = cast(dict[str, Any], value).items()
            pairs = [f"{_quoted(key)}: {self._value(item, depth + 1)}" for key, item in entries]
            return _bracketed("{", pairs, "}", depth)
        if isinstance(value, tuple | list):
            sequence = cast(list[Any] | tuple[Any, ...], value)
            items = [self._value(item, depth + 1) for item in sequence]
            if isinstance(value, list):
                return _bracketed("[", items, "]", depth)
            return f"({items[0]},)" if len(items) == 1 else _bracketed("(", items, ")", depth)
        return self._literal(value, depth)

    def _literal(self, value: Any, depth: int) -> str:
        if isinstance(value, Reference):
            self.imports.add(("setpoint.config", "ref"))
            if isinstance(value, Template):
                return f"ref({_quoted(value.text)})"
            return f"ref({_quoted(value.text.strip()[2:-1].strip())})"
        if isinstance(value, Free):
            self.imports.add(("setpoint.config", "Free"))
            inner = self._value(value.dump(), depth + 1)
            return _bracketed("Free(", [f"**{inner}"], ")", depth)
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            return f"float({str(value)!r})"
        cls: Any = type(cast(object, value))
        if cls is str:
            return _quoted(cast(str, value))
        if cls is LiteralText:
            return _quoted(escaped(cast(str, value)))
        if cls in (bool, int, float, type(None)):
            return repr(value)
        if cls.__module__.partition(".")[0] == "pathlib":
            self.imports.add(("pathlib", "Path"))
            return f"Path({_quoted(str(value))})"
        if cls.__module__ == "re":
            self.imports.add(("re", ""))
            return f"re.compile({_quoted(cast(Any, value).pattern)})"
        self._import(cls)
        if isinstance(value, Enum):
            names = flag_names(value)[0] if isinstance(value, Flag) else [value.name]
            members = [f"{cls.__qualname__}{_attribute(name)}" for name in names]
            return " | ".join(members) or f"{cls.__qualname__}(0)"
        return repr(value)


def _attribute(name: str) -> str:
    """The expression for a member of an enum, whose name need not be a Python identifier."""
    plain = name.isidentifier() and not keyword.iskeyword(name)
    return f".{name}" if plain else f"[{_quoted(name)}]"


def _quoted(text: str) -> str:
    """A text as a Python literal, in double quotes unless that needs more escapes."""
    plain = repr(text)
    if plain[0] == "'" and '"' not in text and "\\" not in plain:
        return f'"{plain[1:-1]}"'
    return plain


def _bracketed(head: str, items: list[str], tail: str, depth: int) -> str:
    line = head + ", ".join(items) + tail
    if "\n" not in line and len(line) + 4 * depth <= WIDTH:
        return line
    pad = INDENT * (depth + 1)
    return head + "\n" + "".join(f"{pad}{item},\n" for item in items) + INDENT * depth + tail
