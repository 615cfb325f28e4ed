"""One hash of all identity fields."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from ..draft.argument_errors import need_config
from ..draft.walk import Leaf, absence_role, free_leaves, has_shared, leaves
from ..schema.bounds import IDENTITY
from ..schema.field import FieldInfo
from ..types.base import FieldType, dump_item
from ..values.free import Free
from ..values.node import Node, is_frozen, state_of, value_or_missing
from ..values.reference import Reference
from ..words.errors import SetpointError
from ..words.shown import INFINITIES, MISSING, json_value

SHORT = 8


def identity_leaves(config: Node) -> list[Leaf]:
    """The values that the fingerprint is taken of."""
    return [leaf for leaf in leaves(config) if leaf.role is IDENTITY]


def canonical(config: Node) -> str:
    """The text that the fingerprint is taken of.

    Returns:
        JSON of a mapping from dotted path to value: sorted keys, no spaces, ASCII only, floats
        in their shortest exact form. Free of the order of fields, of the machine and of Python's
        version.
    """
    if is_frozen(config) and not has_shared(config):
        try:
            rows = _Rows().section(config)
        except _Irregular:
            return canonical_by_leaves(config)
        if type(config).__setpoint__.tag is not None:  # which no field of a root chooses
            rows = _without(rows, "type")
        return '{"' + rows.replace("\n", ',"') + "}" if rows else "{}"
    return canonical_by_leaves(config)


def canonical_by_leaves(config: Node) -> str:
    """The canonical form of any config, also of one with sections that stand in several places."""
    return canonical_json({leaf.key: json_value(leaf.value) for leaf in identity_leaves(config)})


class _Irregular(Exception):
    """A key that is no plain word: rows cannot be put together."""


class _Rows:
    """The canonical form of a resolved config, put together from that of its sections.

    A row is the text `path":value`, without the quote before it; no row has a line break. The rows
    of a section are one text, a row a line, which become those of the section above by a prefix.
    Paths hold letters, digits, `_`, `-` and dots only, so that sorted rows are sorted by path, and
    rows with a common prefix follow one another. What is outside of identity has no rows, and
    nothing inside of it has; a section's rows are therefore the same wherever they count, and are
    kept with it.
    """

    def __init__(self) -> None:
        self.quote = _quote()
        self.writers = {**_WRITERS, str: self.quote}

    def section(self, config: Node) -> str:
        """The sorted rows of a section, with its tag, by paths relative to it."""
        state = state_of(config)
        # Of what is self-contained, no part stands in a second place.
        if state.self_contained and state.rows is not None:
            return state.rows
        writers, held, known = self.writers, vars(config), type(config).__setpoint__
        rows: list[str] = []
        if known.tag is not None and known.role is IDENTITY:
            rows.append(f'type":{self.quote(known.tag)}')
        for name, key, info in _plan(type(config)):
            value: Any = held.get(name, MISSING)
            write = writers.get(value.__class__)
            if write is not None:
                rows.append(key + write(value))
                continue
            if value is MISSING:
                value = value_or_missing(config, name)
            if value is not MISSING and not (value is None and name in known.added):
                self.value(rows, name, info.type, value)
        rows.sort()
        text = "\n".join(rows)
        if state.self_contained:
            state.rows = text
        return text

    def value(self, rows: list[str], name: str, kind: FieldType, value: Any) -> None:
        """The rows of a value; `name` is its path relative to the section."""
        if value is None and not kind.nested:
            rows.append(f'{name}":null')
        elif isinstance(value, Node):
            inside = self.section(value)
            if inside:
                rows.append(f"{name}." + inside.replace("\n", f"\n{name}."))
            elif type(value).__setpoint__.role is IDENTITY and not type(value).__setpoint__.fields:
                rows.append(f'{name}":{{}}')
        elif isinstance(value, Free):
            for leaf in free_leaves(value, (), IDENTITY):
                path = ".".join(_word(part) for part in leaf.path)
                rows.append(f'{name}.{path}":{_encoded(json_value(leaf.value), self.quote)}')
        elif isinstance(value, Reference):
            raise _Irregular
        elif kind.nested and value:
            items = kind.items(value)
            if isinstance(value, dict):
                items = sorted(items, key=lambda item: item[0])
            for key, item, inner in items:
                self.value(rows, f"{name}.{_word(key)}", inner, item)
        elif not kind.nested or absence_role(kind, IDENTITY) is IDENTITY:
            rows.append(f'{name}":{_encoded(dump_item(kind, value), self.quote)}')


def _without(rows: str, path: str) -> str:
    """Rows without the one of a path."""
    return "\n".join(row for row in rows.split("\n") if not row.startswith(f'{path}"'))


def _plan(cls: Any) -> list[tuple[str, str, FieldInfo]]:
    """The fields of a class that are part of identity: name, begin of the row, declaration."""
    known = cls.__setpoint__
    plan = known.plan
    if plan.identity is None:
        if not "".join(known.fields).isascii():
            raise _Irregular
        plan.identity = [
            (name, f'{name}":', info)
            for name, info in known.fields.items()
            if info.role in (None, IDENTITY)
        ]
    return plan.identity


def _word(key: str | int) -> str:
    """A key of a mapping as part of a path.

    Raises:
        _Irregular: if it would have to be escaped, would sort another way, or looks like a tag.
    """
    text = str(key)
    word = f"_{text}".replace("-", "_")
    if not (word.isascii() and word.isidentifier()) or text == "type":
        raise _Irregular
    return text


def _float(value: float) -> str:
    if value in INFINITIES:
        return '"inf"' if value > 0 else '"-inf"'
    return float.__repr__(value)


# How numbers are written, truth values first, which Python takes for numbers as well.
_WRITERS: dict[type, Callable[[Any], str]] = {
    bool: lambda value: "true" if value else "false",
    int: int.__repr__,
    float: _float,
}


def canonical_json(values: Mapping[str, object]) -> str:
    """The canonical form of values by dotted path."""
    json = sys.modules.get("json")
    if json is not None:  # imported already
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return encoded(values)


def _quote() -> Callable[[str], str]:
    """How a text is written: the function that `json` itself uses.

    Importing `json` for it would bring its reader, which costs more than the whole fingerprint.
    """
    try:
        return import_module("_json").encode_basestring_ascii
    except ImportError:
        return import_module("json.encoder").encode_basestring_ascii


def encoded(value: object) -> str:
    """Plain data as `json.dumps` writes it with sorted keys, no spaces and ASCII only."""
    return _encoded(value, _quote())


def _encoded(value: Any, quote: Callable[[str], str]) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{','.join([_encoded(each, quote) for each in cast(list[Any], value)])}]"
    if value is None:
        return "null"
    if isinstance(value, str):
        return quote(value)
    for kind, write in _WRITERS.items():
        if isinstance(value, kind):
            return write(value)
    pairs = sorted(cast(Mapping[str, Any], value).items())
    return "{" + ",".join(f"{quote(key)}:{_encoded(each, quote)}" for key, each in pairs) + "}"


def fingerprint(config: Node) -> str:
    """SHA-256 over the canonical form.

    Returns:
        64 hexadecimal digits; names of runs use the first eight.

    Raises:
        SetpointError: for a draft, whose values are not determined yet.
    """
    need_config(config, "fingerprint")
    if not is_frozen(config):
        raise SetpointError("only a resolved configuration has a fingerprint; resolve the draft")
    return sha256(canonical(config).encode("ascii"))


def sha256(data: bytes) -> str:
    """The digest by OpenSSL where that is loaded, else by CPython's own code.

    Loading OpenSSL, as `hashlib` does, costs a tenth of a whole `setpoint check`.
    """
    hashlib = sys.modules.get("hashlib")
    if hashlib is not None:
        return hashlib.sha256(data).hexdigest()
    try:
        module: Any = import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    except ImportError:
        module = import_module("hashlib")
    return module.sha256(data).hexdigest()
