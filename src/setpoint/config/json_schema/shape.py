"""Schemas put together so that a validator's error names the one thing that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

Schema = dict[str, Any]

OBJECT: Schema = {"type": "object"}

REFERENCE: Schema = {"type": "string", "pattern": r"^\s*\$\{[\s\S]*\}\s*$"}
"""Arithmetic on other fields, which may stand for any value."""

TEMPLATE: Schema = {"type": "string", "pattern": r"\$\{[\s\S]*\}"}
"""A text with references in it."""

PRESET: Schema = {"type": "string", "pattern": r"^@."}
"""The section of a preset."""

LITERAL: Schema = {"type": "string", "pattern": r"\$\$\{"}
"""A text that holds `${` as it is."""

NULL: Schema = {"type": ["null", "string"], "pattern": "^null$"}
"""Null, which TOML has not and writes as a text."""


def whole(pattern: str) -> str:
    """A regular expression that a text must match as a whole.

    Arguments:
        pattern: the expression, in the part of the language that Python and ECMA-262 share.

    Returns:
        the expression between anchors.
    """
    return f"^(?:{pattern})$"


def either(*options: Schema) -> Schema:
    """A schema for what fits any of several.

    `anyOf` would be right, but a validator can only say of it that nothing fits. What differs by
    the type of the JSON value is therefore told apart by it, so that the error is that of the
    option which was meant: keywords such as `minimum`, `items` and `pattern` each concern one type
    only and stand side by side, and an object is held against the schema of objects.

    Arguments:
        options: schemas; those with a `$ref` are of objects.

    Returns:
        the schema.
    """
    if {} in options:
        return {}
    flat: Schema = {}
    apart: list[Schema] = []
    objects: list[Schema] = []
    for option in options:
        for part in _parts(option):
            if "$ref" in part:
                objects.append(part)
            elif not _joined(flat, part):
                apart.append(part)
    if flat:
        apart.append(flat)
    if not objects:
        return _any_of(apart)
    if not apart:
        return _any_of(objects)
    return {"if": OBJECT, "then": _any_of(objects), "else": _any_of(apart)}


def _parts(schema: Schema) -> Iterator[Schema]:
    """The options that a schema was made of by `either`."""
    if schema.get("if") == OBJECT:
        yield from _parts(schema["then"])
        yield from _parts(schema["else"])
    elif list(schema) == ["anyOf"]:
        for option in schema["anyOf"]:
            yield from _parts(option)
    else:
        yield schema


def _any_of(options: list[Schema]) -> Schema:
    return options[0] if len(options) == 1 else {"anyOf": options}


def _joined(flat: Schema, option: Schema) -> bool:
    """Put an option's keywords beside those of the others; False if they would mix."""
    if "type" not in option or "enum" in option:
        return False
    known, new = types_of(flat), types_of(option)
    shared = set(known) & set(new)
    if shared - {"string"}:
        return False
    texts = "string" in shared
    patterns = [schema.get("pattern") for schema in (flat, option)]
    flat.update(option)
    types = list(dict.fromkeys([*known, *new]))
    flat["type"] = types[0] if len(types) == 1 else types
    if texts:
        # A text that fits one of two patterns; without a pattern, every text does.
        flat.pop("pattern", None)
        if None not in patterns:
            flat["pattern"] = "|".join(dict.fromkeys(cast(list[str], patterns)))
    return True


def types_of(schema: Schema) -> list[str]:
    """The JSON types that a schema lists.

    Arguments:
        schema: any schema.

    Returns:
        their names; none if it lists none.
    """
    listed: Any = schema.get("type", [])
    return [listed] if isinstance(listed, str) else list(listed)
