"""Schemas that a document repeats, written once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import cast

from setpoint.editor_schema.shape import Schema

# Where the keywords that this package writes hold other schemas.
SINGLE = ("items", "additionalProperties", "propertyNames", "if", "then", "else")
LISTS = ("anyOf", "allOf", "prefixItems")
MAPS = ("properties", "$defs")
SHORT = 60
"""Characters that are not worth a reference."""


def write_once(document: Schema) -> Schema:
    """Move each schema that a document repeats to `$defs`.

    A definition that differs by its description is another one: in a draft before 2019-09, which
    some editors follow, nothing may stand beside `$ref`.
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
    """A schema with a change made to each schema directly inside."""

    def changed(part: object) -> object:
        return change(cast(Schema, part)) if isinstance(part, dict) else part

    found = dict(schema)
    for key, part in schema.items():
        if key in SINGLE:
            found[key] = changed(part)
        elif key in LISTS:
            found[key] = [changed(option) for option in part]
        elif key in MAPS:
            found[key] = {name: changed(option) for name, option in part.items()}
    return found
