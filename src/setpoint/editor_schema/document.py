"""The schema of whole configuration files."""

from __future__ import annotations

from setpoint.config import HEADERS, SWEEP_KEY, Node, need_class
from setpoint.config import all_fields as every_field
from setpoint.editor_schema.definitions import EXTENDS, NAMES, Definitions
from setpoint.editor_schema.repeated import write_once
from setpoint.editor_schema.shape import Schema, either, inside
from setpoint.editor_schema.sweep import sweep_schema

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
POINTS: Schema = {"type": "object", "description": "The points of `setpoint sweep`."}
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
    points = POINTS
    if sweep is not None:
        points = {**POINTS, **sweep_schema(sweep, definitions)}
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
