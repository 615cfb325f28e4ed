"""The schemas of sections, each written once under `$defs`, and of the values of their fields."""

from __future__ import annotations

from setpoint.config import MISSING, FieldInfo, plain
from setpoint.config.schema.field import Bounds
from setpoint.config.types.base import FieldType
from setpoint.config.types.compound import (
    REMOVE,
    AnyOfType,
    FreeType,
    MappingType,
    OptionalType,
    SectionType,
    SequenceType,
    TupleType,
)
from setpoint.config.values.node import Node
from setpoint.config.words.plain_data import INFINITIES
from setpoint.editor_schema.help import class_help, field_help
from setpoint.editor_schema.shape import (
    LITERAL,
    NULL,
    PRESET,
    REFERENCE,
    TEMPLATE,
    Schema,
    either,
    hint,
    inside,
)

EXTENDS = "extends"
FREE = "Free"
NAMES: Schema = {
    "type": ["string", "array"],
    "minLength": 1,
    "items": {"type": "string", "minLength": 1},
}
NO_BOUNDS = Bounds()


def pointer(name: str) -> Schema:
    """A reference to a definition of the document."""
    return {"$ref": f"#/$defs/{name}"}


class Definitions:
    """The `$defs` of one document.

    Recursive classes work, because a definition is named before it is built.
    """

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}
        self._names: dict[tuple[type[Node], ...], str] = {}

    def fields(self, cls: type[Node]) -> Schema:
        """The schema of a section's fields."""
        schema: Schema = {"title": cls.__name__}
        if class_help(cls):
            schema["description"] = class_help(cls)
        tag = cls.__setpoint__.tag
        properties: Schema = {} if tag is None else {"type": {"const": tag}}
        for name, info in cls.__setpoint__.fields.items():
            properties[name] = self.field(cls, info)
        properties.setdefault(EXTENDS, _extends())
        schema["properties"] = properties
        # An imported component takes any arguments that its target has.
        schema["additionalProperties"] = hasattr(cls, "__setpoint_open__")
        return schema

    def field(self, cls: type[Node], info: FieldInfo) -> Schema:
        """The schema of one field, with its help and default."""
        kind = info.type
        options = self.options(kind, info.bounds, info.item_bounds)
        if isinstance(kind.inner if isinstance(kind, OptionalType) else kind, SectionType):
            options.append(PRESET)
        schema = either(*options)
        text = field_help(cls, info.name)
        if info.environment is not None:
            text = f"{text}\n\nThe variable {info.environment} can also set it.".strip()
        if text:
            schema = {"description": text, **schema}
        if not kind.nested and not info.derived:
            default = info.initial()
            if default is not MISSING:
                schema["default"] = plain(kind.dump(default))
        return schema

    def section(self, kind: SectionType, is_new: bool = False) -> list[Schema]:
        """The schemas of everything that is valid in place of a section.

        If the section `is_new`, as in a list, `type` is required.
        """
        tags = list(kind.candidates())
        only = kind.only()
        fields = self._family(kind) if only is None else self._class(only)
        section: Schema = {"type": "object", **inside([fields])}
        if is_new and only is None:
            section["required"] = ["type"]
        return [section, {"enum": tags}] if tags else [section]

    def _class(self, cls: type[Node]) -> Schema:
        name, known = self._name((cls,))
        if not known:
            self.schemas[name] = self.fields(cls)
        return pointer(name)

    def _family(self, kind: SectionType) -> Schema:
        """One of several classes, selected by `type`."""
        name, known = self._name(kind.classes)
        if known:
            return pointer(name)
        variants = kind.variants()
        cases: list[Schema] = []
        family: Schema = {
            "title": " or ".join(cls.__name__ for cls in kind.classes),
            "properties": {"type": {"enum": list(variants)}},
            "if": {"type": "object", "required": ["type"]},
            "then": {"allOf": cases},
        }
        self.schemas[name] = family
        for tag, cls in variants.items():
            chosen = {"properties": {"type": {"const": tag}}}
            cases.append({"if": chosen, "then": self._class(cls)})
        # A lower layer may have chosen the `type`: fields of any variant may be set.
        properties: dict[str, list[Schema]] = {EXTENDS: [_extends()]}
        for cls in variants.values():
            for key, info in cls.__setpoint__.fields.items():
                schema = self.field(cls, info)
                if schema not in properties.setdefault(key, []):
                    properties[key].append(schema)
        self.schemas[f"{name}.fields"] = {
            "properties": {key: _any_of(options) for key, options in properties.items()},
            # Closed, although the `type` may be one that takes any argument: a misspelt key, which
            # should be marked, is far more likely.
            "additionalProperties": False,
        }
        family.update({"else": pointer(f"{name}.fields"), **hint(pointer(f"{name}.fields"))})
        return pointer(name)

    def _name(self, classes: tuple[type[Node], ...]) -> tuple[str, bool]:
        """A name for classes, unique in the document, and True if it already existed."""
        if classes in self._names:
            return self._names[classes], True
        name = "_or_".join(cls.__name__ for cls in classes)
        if name in self._names.values():
            # Two classes of one name are in different modules or scopes.
            name = "_or_".join(f"{cls.__module__}.{cls.__qualname__}" for cls in classes)
            name = name.replace("<locals>", "locals")
        unique, count = name, 2
        while unique in self._names.values():
            unique, count = f"{name}.{count}", count + 1
        self._names[classes] = unique
        return unique, False

    def options(self, kind: FieldType, bounds: Bounds | None, items: Bounds | None) -> list[Schema]:
        """The schemas of the values that a field of a type accepts in a file.

        Returns:
            one per kind of value, for `either`; for an unknown type, the schema of anything.
            References are valid for all values except secrets, to which they cannot refer.
        """
        options = self._values(kind, bounds or NO_BOUNDS, items)
        if kind.is_secret():
            return options
        return [*options, TEMPLATE if kind.takes_text else REFERENCE]

    def _values(self, kind: FieldType, bounds: Bounds, items: Bounds | None) -> list[Schema]:
        match kind:
            case OptionalType():
                return [*self._values(kind.inner, bounds, items), NULL]
            case AnyOfType():
                return [value for part in kind.parts for value in self._values(part, bounds, items)]
            case SectionType():
                return self.section(kind)
            case FreeType():
                keys: Schema = {
                    "propertyNames": {"pattern": r"^[^_.][^.]*$"},
                    "additionalProperties": pointer(FREE),
                }
                self.schemas[FREE] = keys
                return [{"type": "object", **keys}]
            case SequenceType():
                return self._sequence(kind, items)
            case TupleType():
                return [self._tuple(kind, items)]
            case MappingType():
                return [self._mapping(kind, items)]
            case _:
                return _scalar(dict(kind.json_schema), bounds)

    def _item(self, kind: FieldType, bounds: Bounds | None, is_new: bool) -> Schema:
        if is_new and isinstance(kind, SectionType):
            return either(*self.section(kind, is_new=True), REFERENCE)
        return either(*self.options(kind, bounds, None))

    def _sequence(self, kind: SequenceType, bounds: Bounds | None) -> list[Schema]:
        """A list, and a mapping that edits one instead of replacing it."""
        item = self._item(kind.item, bounds, is_new=True)
        edits: Schema = {
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
            # Items by index or name. An existing item keeps its `type`, which need not be repeated.
            "additionalProperties": self._item(kind.item, None, is_new=False),
        }
        return [{"type": "array", "items": item}, edits]

    def _tuple(self, kind: TupleType, bounds: Bounds | None) -> Schema:
        count = len(kind.parts)
        edits = [self._item(part, bounds, is_new=False) for part in kind.parts]
        return {
            "type": ["array", "object"],
            "prefixItems": [self._item(part, bounds, is_new=True) for part in kind.parts],
            "minItems": count,
            "maxItems": count,
            # A single item, by its index.
            "properties": {
                str(index): item
                for place, item in enumerate(edits)
                for index in (place, place - count)
            },
            "additionalProperties": False,
        }

    def _mapping(self, kind: MappingType, bounds: Bounds | None) -> Schema:
        names: Schema = {"type": ["string", "array"], "items": {"type": "string"}}
        schema: Schema = {"type": "object", "properties": {REMOVE: names}}
        if kind.nested:
            schema["propertyNames"] = {"pattern": r"^[^.]+$"}
        schema["additionalProperties"] = self._item(kind.item, bounds, is_new=False)
        return schema


def _extends() -> Schema:
    text = "Files with fields of this section, which stand below those here."
    return {**NAMES, "description": text}


def _scalar(schema: Schema, bounds: Bounds) -> list[Schema]:
    """The schemas of numbers and texts inside a range."""
    if list(schema) == ["anyOf"]:
        return list(schema["anyOf"])
    if schema.get("type") in ("integer", "number"):
        words = ("exclusiveMinimum", "minimum", "exclusiveMaximum", "maximum")
        limits = zip(words, (bounds.gt, bounds.ge, bounds.lt, bounds.le), strict=True)
        schema |= {word: x for word, x in limits if x is not None and x not in INFINITIES}
    if schema.get("type") == "number":
        # Strings for numbers that JSON, YAML or this format cannot represent.
        words = [f"^{limit}$" for limit in INFINITIES if bounds.takes(limit)]
        return [schema, *({"type": "string", "pattern": word} for word in words)]
    pattern = bounds.pattern or "(?P"  # only Python has named groups
    if schema == {"type": "string"} and "(?P" not in pattern:
        return [{**schema, "pattern": f"^(?:{pattern})$"}, LITERAL]
    return [schema]


def _any_of(options: list[Schema]) -> Schema:
    """One field of several variants: the schema of each, with the help of the first."""
    if len(options) == 1:
        return options[0]
    shared = {key: options[0][key] for key in ("description",) if key in options[0]}
    if all(
        "default" in option and option["default"] == options[0]["default"] for option in options
    ):
        shared["default"] = options[0]["default"]
    taken: list[Schema] = []
    for option in options:
        content = {k: value for k, value in option.items() if k not in ("description", "default")}
        if content not in taken:
            taken.append(content)
    # With one schema a validator names the violated keyword; with `anyOf` only that none fits.
    return {**shared, **(taken[0] if len(taken) == 1 else inside([{"anyOf": options}]))}
