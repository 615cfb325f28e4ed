"""The schema of whole configuration files, the table `[sweep]` included."""

from __future__ import annotations

from setpoint.config import HEADERS, SWEEP_KEY, Node, SectionType, need_class
from setpoint.config import all_fields as every_field
from setpoint.editor_schema.definitions import EXTENDS, NAMES, Definitions
from setpoint.editor_schema.shape import Schema, either, inside, write_once

SWEEP_VALUES, DRAWN = "sweep.values", "sweep.distributions"
FIELDS: Schema = {"type": "object", "minProperties": 1}
"""Any fields with any values: what each field takes, `setpoint sweep` says."""


def sweep_schema(table: type[Node], definitions: Definitions) -> Schema:
    """The schema of a table of points.

    Arguments:
        definitions: of the document; gets those of the table.
    """
    before = set(definitions.schemas)
    (section,) = definitions.section(SectionType((table,)))
    values: Schema = {"type": "array", "minItems": 1}
    definitions.schemas[SWEEP_VALUES] = _nested(SWEEP_VALUES, values)
    definitions.schemas[DRAWN] = _nested(DRAWN, {"type": "string"})
    kinds: dict[str, Schema] = {
        "grid": {"$ref": f"#/$defs/{SWEEP_VALUES}"},
        "zip": {"$ref": f"#/$defs/{SWEEP_VALUES}"},
        "axes": {"$ref": f"#/$defs/{DRAWN}"},
        "points": {"type": "array", "items": FIELDS},
    }
    for name in set(definitions.schemas) - before - {SWEEP_VALUES, DRAWN}:
        properties: Schema = definitions.schemas[name]["properties"]
        for key in kinds.keys() & properties.keys():
            properties[key] = {"description": properties[key]["description"], **kinds[key]}
    return section


def _nested(name: str, leaf: Schema) -> Schema:
    """Fields at any depth: `optimizer.lr = ...` is a table in a table for most formats."""
    inside = {"if": {"type": "object"}, "then": {"$ref": f"#/$defs/{name}"}, "else": leaf}
    if name == DRAWN:  # which may be written as a table with its type
        told = {"required": ["type"], "properties": {"type": {"type": "string"}}}
        return {"type": "object", "if": told, "else": {"additionalProperties": inside}}
    return {"type": "object", "additionalProperties": inside}


DRAFT = "https://json-schema.org/draft/2020-12/schema"
TAG = "tag"
ABOUT_THE_FILE: dict[str, Schema] = {
    EXTENDS: {
        **NAMES,
        "description": "Presets and other files, relative to this one, that it is put on top of.",
    },
    "$schema": {"type": "string", "description": "Where the JSON Schema of this file lies."},
    "setpoint": {"type": "object", "description": "What wrote this file, and in which version."},
}
"""The keys of a file that are no fields: what each of `HEADERS` may hold."""


def json_schema(root: type[Node], sweep: type[Node] | None = None) -> Schema:
    """The JSON Schema of the files that a configuration can be written in.

    It takes what Setpoint takes from a file. It cannot know what a file is put on top of, so no
    field is required and, where no `type` is given, the fields of all variants are taken.

    Arguments:
        sweep: the class of the table `[sweep]`; None takes any table.

    Raises:
        SetpointError: for anything but a config class.
    """
    need_class(root, "json_schema")
    definitions = Definitions()
    fields = definitions.fields(root)
    properties = fields.pop("properties")
    del properties[EXTENDS]
    del fields["additionalProperties"]
    tags = _tags(root, definitions)
    about = f"The points of {root.__setpoint__.command('sweep')}."
    points: Schema = {"type": "object", "description": about}
    if sweep is not None:
        points |= sweep_schema(sweep, definitions)
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


def _tags(root: type[Node], definitions: Definitions) -> Schema:
    """The table that sets all fields with a mark at once; empty if there is no such mark."""
    found: dict[str, list[Schema]] = {}
    paths: dict[str, list[str]] = {}
    for path, info in every_field(root):
        for tag in info.tags:
            options = definitions.values.options(info.type, info.bounds, info.item_bounds)
            schema = either(*options)
            if schema not in found.setdefault(tag, []):
                found[tag].append(schema)
            paths.setdefault(tag, []).append(path)
    if not found:
        return {}
    properties: Schema = {}
    for tag, schemas in found.items():
        reached = ", ".join(dict.fromkeys(paths[tag]))
        # Each field must take the value that all of them get.
        properties[tag] = {"description": f"Sets {reached}.", **inside(schemas)}
    return {
        "type": "object",
        "description": "Sets all fields that carry a tag at once.",
        "properties": properties,
        "additionalProperties": False,
    }
