"""The JSON Schema of whole configuration files, including the table `[sweep]`."""

from __future__ import annotations

from setpoint.config import all_fields as every_field
from setpoint.config.composition import SWEEP_KEY
from setpoint.config.draft.walk import need_class
from setpoint.config.layers.extends import HEADERS
from setpoint.config.types.compound import SectionType
from setpoint.config.values.node import Node
from setpoint.editor_schema.definitions import EXTENDS, NAMES, Definitions, pointer
from setpoint.editor_schema.shape import Schema, either, inside, write_once

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TAG = "tag"
SWEEP_VALUES, DRAWN = "sweep.values", "sweep.distributions"
FIELDS: Schema = {"type": "object", "minProperties": 1}
"""Any fields with any values; `setpoint sweep` checks them."""
SWEEP_PARTS: dict[str, Schema] = {
    "grid": pointer(SWEEP_VALUES),
    "zip": pointer(SWEEP_VALUES),
    "axes": pointer(DRAWN),
    "points": {"type": "array", "items": FIELDS},
}
"""The parts of the table `[sweep]` that name fields."""
ABOUT_THE_FILE: dict[str, Schema] = {
    EXTENDS: {
        **NAMES,
        "description": "Presets and other files, relative to this one, that it is put on top of.",
    },
    "$schema": {"type": "string", "description": "Where the JSON Schema of this file lies."},
    "setpoint": {"type": "object", "description": "What wrote this file, and in which version."},
}
"""The keys of a file that are not fields: what each of `HEADERS` may hold."""


def json_schema(root: type[Node], sweep: type[Node] | None = None) -> Schema:
    """The JSON Schema of the files in which a configuration can be written.

    It accepts what Setpoint accepts in a file. The layers below a file are unknown, so no field is
    required, and fields of all variants are valid without a `type`.

    Arguments:
        sweep: the class of the table `[sweep]`; None: any table.

    Raises:
        SetpointError: the root is not a config class.
    """
    need_class(root, "json_schema")
    definitions = Definitions()
    fields = definitions.fields(root)
    properties = fields.pop("properties")
    del properties[EXTENDS]
    del fields["additionalProperties"]
    tags = _tags(root, definitions)
    description = f"The points of {root.__setpoint__.command('sweep')}."
    points: Schema = {"type": "object", "description": description}
    if sweep is not None:
        points |= _sweep(sweep, definitions)
    document = {
        "$schema": DRAFT,
        "type": "object",
        **fields,
        "properties": {
            **{key: ABOUT_THE_FILE.get(key, {}) for key in HEADERS},
            **({TAG: tags} if tags else {}),
            SWEEP_KEY: points,
            **properties,
        },
        "additionalProperties": False,
        "$defs": dict(sorted(definitions.schemas.items())),
    }
    return write_once(document)


def _sweep(table: type[Node], definitions: Definitions) -> Schema:
    """The schema of a table of points, whose definitions are added."""
    before = set(definitions.schemas)
    (section,) = definitions.section(SectionType((table,)))
    for name in set(definitions.schemas) - before:
        properties: Schema = definitions.schemas[name]["properties"]
        for key in SWEEP_PARTS.keys() & properties.keys():
            properties[key] = {"description": properties[key]["description"], **SWEEP_PARTS[key]}
    # Fields at any depth: `optimizer.lr = ...` is a nested table in most formats.
    values: Schema = {"type": "array", "minItems": 1}
    definitions.schemas[SWEEP_VALUES] = {
        "type": "object",
        "additionalProperties": _nested(SWEEP_VALUES, values),
    }
    definitions.schemas[DRAWN] = {
        "type": "object",
        # A distribution may be written as a table with its type.
        "if": {"required": ["type"], "properties": {"type": {"type": "string"}}},
        "else": {"additionalProperties": _nested(DRAWN, {"type": "string"})},
    }
    return section


def _nested(name: str, leaf: Schema) -> Schema:
    return {"if": {"type": "object"}, "then": pointer(name), "else": leaf}


def _tags(root: type[Node], definitions: Definitions) -> Schema:
    """The table that sets all fields with a tag at once; empty if there are no tags."""
    schemas: dict[str, list[Schema]] = {}
    paths: dict[str, dict[str, None]] = {}
    for path, info in every_field(root):
        for tag in info.tags:
            schema = either(*definitions.options(info.type, info.bounds, info.item_bounds))
            if schema not in schemas.setdefault(tag, []):
                schemas[tag].append(schema)
            paths.setdefault(tag, {})[path] = None
    if not schemas:
        return {}
    return {
        "type": "object",
        "description": "Sets all fields that carry a tag at once.",
        "properties": {
            # The value applies to all these fields, so each must accept it.
            tag: {"description": f"Sets {', '.join(paths[tag])}.", **inside(options)}
            for tag, options in schemas.items()
        },
        "additionalProperties": False,
    }
