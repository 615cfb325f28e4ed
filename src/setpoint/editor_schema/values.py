"""From field types to schemas."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Flag
from typing import Any, Protocol

from setpoint.config import (
    INFINITIES,
    REMOVE,
    AnyOfType,
    AnyType,
    BoolType,
    Bounds,
    EnumType,
    FieldType,
    FloatType,
    FreeType,
    ImportPathType,
    IntType,
    LiteralType,
    MappingType,
    OptionalType,
    PathType,
    PatternType,
    ScalarType,
    SectionType,
    SequenceType,
    StrType,
    TupleType,
)
from setpoint.editor_schema.shape import LITERAL, NULL, REFERENCE, TEMPLATE, Schema, either, whole

FREE = "Free"
Options = list[Schema]
ANY_PATH = r"[^\u0000]+"
# Words that JSON and YAML write for what they, or this format, cannot hold as a number.
HIGHEST, LOWEST = "^inf$", "^-inf$"
NO_BOUNDS = Bounds()


class Sections(Protocol):
    """Where the schemas of sections and free areas are kept."""

    def section(self, kind: SectionType, fresh: bool = False) -> list[Schema]:
        """The schemas of what can stand where a section is wanted."""
        ...

    def free(self) -> Schema:
        """The schema of the area whose keys are the user's own."""
        ...


class Values:
    """Makes the schema of a value of any type."""

    def __init__(self, definitions: Sections) -> None:
        self.definitions = definitions
        self.makers: dict[type[FieldType], Callable[[Any, Bounds, Bounds], Schema | Options]] = {
            AnyOfType: self._any_of,
            AnyType: lambda kind, bounds, items: {},
            BoolType: lambda kind, bounds, items: {"type": "boolean"},
            EnumType: lambda kind, bounds, items: _members(kind),
            FloatType: lambda kind, bounds, items: _float(bounds),
            FreeType: lambda kind, bounds, items: self.definitions.free(),
            ImportPathType: lambda kind, bounds, items: {"type": "string"},
            IntType: lambda kind, bounds, items: {"type": "integer", **_limits(bounds)},
            LiteralType: lambda kind, bounds, items: {"enum": list(kind.choices)},
            MappingType: self._mapping,
            OptionalType: self._optional,
            PathType: lambda kind, bounds, items: {"type": "string", "pattern": whole(ANY_PATH)},
            PatternType: lambda kind, bounds, items: {"type": "string"},
            ScalarType: lambda kind, bounds, items: _scalar(kind),
            SectionType: lambda kind, bounds, items: self.definitions.section(kind),
            SequenceType: self._sequence,
            StrType: lambda kind, bounds, items: _text(bounds),
            TupleType: self._tuple,
        }

    def options(self, kind: FieldType, bounds: Bounds | None, items: Bounds | None) -> Options:
        """The schemas of what a field of a type takes from a file.

        Returns:
            one for each kind of value, for `either`; that of anything for a type that is not known
            here. A reference may stand for each value but a secret, which no reference can reach.
        """
        found = self._own(kind, bounds or NO_BOUNDS, items or NO_BOUNDS)
        return found if kind.is_secret() else [*found, TEMPLATE if kind.takes_text else REFERENCE]

    def _own(self, kind: FieldType, bounds: Bounds, items: Bounds) -> Options:
        maker = self.makers.get(type(kind))
        made = maker(kind, bounds, items) if maker else {}
        return made if isinstance(made, list) else [made]

    def edits(self, kind: SequenceType, item: Schema) -> Schema:
        """The schema of a mapping that edits a list, instead of replacing it.

        Returns:
            a schema of objects: `append`, `extend`, `insert`, `remove`, and items by index or name.
        """
        return {
            "type": "object",
            "properties": {
                "append": item,
                "extend": {"type": "array", "items": item},
                "insert": {
                    "type": "object",
                    "propertyNames": {"pattern": "^-?[0-9]+$"},
                    "additionalProperties": item,
                },
                REMOVE: {},
            },
            # What is there already keeps its `type`, so that it need not be repeated.
            "additionalProperties": self._item(kind.item, None, fresh=False),
        }

    def _item(self, kind: FieldType, bounds: Bounds | None, fresh: bool) -> Schema:
        if fresh and isinstance(kind, SectionType):
            return either(*self.definitions.section(kind, fresh=True), REFERENCE)
        return either(*self.options(kind, bounds, None))

    def _optional(self, kind: OptionalType, bounds: Bounds, items: Bounds) -> Options:
        return [*self._own(kind.inner, bounds, items), NULL]

    def _any_of(self, kind: AnyOfType, bounds: Bounds, items: Bounds) -> Options:
        return [one for option in kind.parts for one in self._own(option, bounds, items)]

    def _sequence(self, kind: SequenceType, bounds: Bounds, items: Bounds) -> Options:
        item = self._item(kind.item, items, fresh=True)
        return [{"type": "array", "items": item}, self.edits(kind, item)]

    def _tuple(self, kind: TupleType, bounds: Bounds, items: Bounds) -> Schema:
        places = [self._item(item, items, fresh=True) for item in kind.parts]
        later = [self._item(item, items, fresh=False) for item in kind.parts]
        count = len(places)
        return {
            "type": ["array", "object"],
            "prefixItems": places,
            "minItems": count,
            "maxItems": count,
            # One place of it, by its index.
            "properties": {
                str(index): item for at, item in enumerate(later) for index in (at, at - count)
            },
            "additionalProperties": False,
        }

    def _mapping(self, kind: MappingType, bounds: Bounds, items: Bounds) -> Schema:
        names: Schema = {"type": ["string", "array"], "items": {"type": "string"}}
        schema: Schema = {"type": "object", "properties": {REMOVE: names}}
        if kind.nested:
            schema["propertyNames"] = {"pattern": r"^[^.]+$"}
        schema["additionalProperties"] = self._item(kind.item, items, fresh=False)
        return schema


def _members(kind: EnumType) -> Schema:
    if not issubclass(kind.cls, Flag):
        return {"enum": list(kind.candidates())}
    one = f"(?:{'|'.join(map(re.escape, kind.candidates()))})"
    return {"type": "string", "pattern": whole(rf"{one}(?: *\| *{one})*|0")}


def _limits(bounds: Bounds) -> Schema:
    words = ("exclusiveMinimum", "minimum", "exclusiveMaximum", "maximum")
    limits = (bounds.gt, bounds.ge, bounds.lt, bounds.le)
    return {
        word: limit
        for word, limit in zip(words, limits, strict=True)
        if limit is not None and limit not in INFINITIES
    }


def _float(bounds: Bounds) -> Options:
    endless = [
        word
        for word, infinity in zip((HIGHEST, LOWEST), INFINITIES, strict=True)
        if bounds.takes(infinity)
    ]
    number: Schema = {"type": "number", **_limits(bounds)}
    return [number, *({"type": "string", "pattern": word} for word in endless)]


def _text(bounds: Bounds) -> Options:
    if bounds.pattern is None or "(?P" in bounds.pattern:  # named groups are Python's alone
        return [{"type": "string"}]
    return [{"type": "string", "pattern": whole(bounds.pattern)}, LITERAL]


def _scalar(kind: ScalarType) -> Options:
    known: Schema = getattr(kind.cls, "__setpoint_json_schema__", {})
    return list(known["anyOf"]) if list(known) == ["anyOf"] else [known]
