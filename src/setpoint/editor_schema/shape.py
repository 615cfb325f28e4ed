"""Composition of schemas: errors name the invalid part, and repeated ones are written once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

Schema = dict[str, Any]

REFERENCE: Schema = {"type": "string", "pattern": r"^\s*\$\{"}
"""Arithmetic on other fields, which may stand for any value."""
TEMPLATE: Schema = {"type": "string", "pattern": r"\$\{"}
"""A text with references in it."""
PRESET: Schema = {"type": "string", "pattern": r"^@."}
"""The section of a preset."""
LITERAL: Schema = {"type": "string", "pattern": r"\$\$\{"}
"""A text with a literal `${`."""
NULL: Schema = {"type": ["null", "string"], "pattern": "^null$"}
"""Null, which TOML lacks and writes as a text."""
NO_TEXT = r"[^\s\S]"
"""A pattern that no text fits, in the part of the language that all editors share."""
SINGLE = ("items", "additionalProperties", "propertyNames", "if", "then", "else")
"""Keywords that hold one schema, among those that this package writes."""
LISTS = ("anyOf", "allOf", "prefixItems")
"""Keywords that hold a list of schemas."""
MAPS = ("properties", "$defs")
"""Keywords that hold schemas by name."""
SHORT = 60
"""Characters that are not worth a reference."""


def either(*options: Schema) -> Schema:
    """A schema for anything that matches one of several schemas.

    `anyOf` would be right, but then a validator can only report that nothing fits. Keywords such as
    `minimum`, `items`, `pattern` and `properties` concern one type of JSON value each, so options
    of different types are merged side by side, and the error is that of the intended option. A text
    that fits no pattern is compared with the words of `enum`.
    """
    if {} in options:
        return {}
    merged: Schema = {}
    words: list[Any] = []
    separate: list[Schema] = []
    for option in options:
        if list(option) == ["enum"]:
            words.extend(option["enum"])
        elif not _merge(merged, option):
            separate.append(option)
    if words and merged and not separate and all(isinstance(word, str) for word in words):
        return _with_words(merged, {"enum": words})
    separate = [*([{"enum": words}] if words else []), *separate, *([merged] if merged else [])]
    return separate[0] if len(separate) == 1 else {"anyOf": separate}


def _merge(merged: Schema, option: Schema) -> bool:
    """Add an option's keywords to those of the others; False if they would conflict."""
    if "type" not in option or option.keys() & {"enum", "anyOf", "if"}:
        return False
    known, new = types_of(merged), types_of(option)
    shared = {*known} & {*new}
    if shared - {"string"}:
        return False
    patterns = [schema.get("pattern") for schema in (merged, option)]
    types = list(dict.fromkeys([*known, *new]))
    merged |= {**option, "type": types[0] if len(types) == 1 else types}
    if "string" in shared:
        # A text that fits one of two patterns; without a pattern, any text.
        merged.pop("pattern", None)
        if None not in patterns:
            merged["pattern"] = "|".join(dict.fromkeys(cast(list[str], patterns)))
    return True


def _with_words(merged: Schema, words: Schema) -> Schema:
    types = types_of(merged)
    # If a table is valid, too, Taplo would propose the key once more for the words.
    proposed = {} if "object" in types else hint(words)
    if "string" in types and "pattern" not in merged:  # any text fits
        return {**merged, **proposed}
    # A pattern applies to text only.
    pattern = merged.pop("pattern", NO_TEXT)
    if "string" not in types:
        merged["type"] = [*types, "string"]
    return {**merged, "if": {"pattern": pattern}, "else": words, **proposed}


def types_of(schema: Schema) -> list[str]:
    """The JSON types that a schema lists."""
    types: Any = schema.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def inside(schemas: list[Schema]) -> Schema:
    """Keywords that accept anything that matches one of several schemas.

    Arguments:
        schemas: schemas whose keys Taplo (0.9), which checks TOML, proposes once and only where
            valid. An `allOf` without `properties` next to it exhausts Taplo's stack.
    """
    return {"properties": {}, "allOf": schemas}


def hint(schema: Schema) -> Schema:
    """Keywords that accept anything, with a schema of proposals for an editor.

    Taplo reads `anyOf`, but not `if`.
    """
    return {"anyOf": [True, schema]}


def write_once(document: Schema) -> Schema:
    """Move each schema that occurs repeatedly in a document to `$defs`.

    Definitions that differ in their description are separate: in drafts before 2019-09, which some
    editors follow, no keyword may accompany `$ref`.
    """
    times = Counter[str]()
    names: dict[str, str] = {}
    definitions: Schema = {}

    def count(schema: Schema) -> Schema:
        text = json.dumps(schema)
        times[text] += 1
        return _changed(schema, count) if times[text] == 1 else schema

    def replace(schema: Schema) -> Schema:
        text = json.dumps(schema)
        if times[text] == 1 or len(text) <= SHORT:
            return _changed(schema, replace)
        if text not in names:
            names[text] = f"_{len(names) + 1}"
            definitions[names[text]] = _changed(schema, replace)
        return {"$ref": f"#/$defs/{names[text]}"}

    _changed(document, count)
    document = _changed(document, replace)
    return {**document, "$defs": {**document["$defs"], **definitions}}


def _changed(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """A schema with a change applied to each schema directly inside it."""

    def changed(part: object) -> object:
        return change(cast(Schema, part)) if isinstance(part, dict) else part

    result = dict(schema)
    for key, part in schema.items():
        if key in SINGLE:
            result[key] = changed(part)
        elif key in LISTS:
            result[key] = [changed(option) for option in part]
        elif key in MAPS:
            result[key] = {name: changed(option) for name, option in part.items()}
    return result
