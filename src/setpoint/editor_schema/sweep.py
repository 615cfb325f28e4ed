"""The schema of the table `[sweep]`, whose axes may be nested or dotted."""

from __future__ import annotations

from setpoint.config import Node, SectionType
from setpoint.editor_schema.definitions import Definitions
from setpoint.editor_schema.shape import Schema

AXES, DRAWN = "sweep.values", "sweep.distributions"
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
    definitions.schemas[AXES] = _nested(AXES, values)
    definitions.schemas[DRAWN] = _nested(DRAWN, {"type": "string"})
    kinds: dict[str, Schema] = {
        "grid": {"$ref": f"#/$defs/{AXES}"},
        "zip": {"$ref": f"#/$defs/{AXES}"},
        "axes": {"$ref": f"#/$defs/{DRAWN}"},
        "points": {"type": "array", "items": FIELDS},
    }
    for name in set(definitions.schemas) - before - {AXES, DRAWN}:
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
