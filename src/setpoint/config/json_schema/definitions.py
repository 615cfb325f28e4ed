"""The schemas of sections, each written once under `$defs` and referred to from everywhere."""

from __future__ import annotations

from ..base import Config
from ..data import json_value
from ..docs import class_help, field_help
from ..field import MISSING, FieldInfo
from ..types.base import FieldType
from ..types.containers import OptionalType
from ..types.sections import SectionType
from .shape import PRESET, Schema, either
from .values import FREE, Values

EXTENDS = "extends"
NAMES: Schema = {
    "type": ["string", "array"],
    "minLength": 1,
    "items": {"type": "string", "minLength": 1},
}


class Definitions:
    """The `$defs` of one document.

    A class that holds itself is no difficulty: its definition is named before it is made.
    """

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}
        self.values = Values(self)
        self._names: dict[tuple[type[Config], ...], str] = {}

    def section(self, kind: SectionType, fresh: bool = False) -> Schema:
        """The schema of what can stand where a section is wanted.

        Arguments:
            kind: the section's type.
            fresh: whether nothing stands there yet, as in a list, so that `type` must be given.

        Returns:
            a schema of objects, or of the name of a variant.
        """
        tags = list(kind.candidates())
        only = kind.only()
        target: Schema = {"$ref": self._class(only) if only is not None else self._family(kind)}
        if fresh and only is None:
            target["required"] = ["type"]
        return either(target, {"enum": tags}) if tags else target

    def place(self, kind: FieldType, schema: Schema) -> Schema:
        """The schema of a field, for whose value a reference or a preset's section may stand.

        Arguments:
            kind: the field's type.
            schema: of the value itself.

        Returns:
            the schema.
        """
        schema = self.values.with_reference(kind, schema)
        parts = kind.parts() if isinstance(kind, OptionalType) else (kind,)
        sections = any(isinstance(part, SectionType) for part in parts)
        return either(schema, PRESET) if sections else schema

    def free(self) -> Schema:
        """The schema of the area whose keys are the user's own.

        Returns:
            a reference to it.
        """
        inside: Schema = {"if": {"type": "object"}, "then": {"$ref": _pointer(FREE)}}
        self.schemas[FREE] = {
            "type": "object",
            "description": "Keys of your own, with plain values.",
            "propertyNames": {"pattern": r"^[^_.][^.]*$"},
            "additionalProperties": inside,
        }
        return {"$ref": _pointer(FREE)}

    def fields(self, cls: type[Config], pointer: str) -> Schema:
        """The schema of a section's fields.

        Arguments:
            cls: its class.
            pointer: where the schema is going to stand in the document.

        Returns:
            a schema of objects that knows every field, and refuses other keys.
        """
        schema: Schema = {"type": "object", "title": cls.__name__}
        if class_help(cls):
            schema["description"] = class_help(cls)
        tag = cls.__setpoint__.tag
        properties: Schema = {} if tag is None else {"type": {"const": tag}}
        for name, info in cls.__setpoint__.fields.items():
            properties[name] = self.field(cls, info)
        properties.setdefault(EXTENDS, self._extends())
        schema["properties"] = properties
        schema.update(_hyphens(properties, f"{pointer}/properties"))
        # A component that is imported by its path has whatever arguments its target has.
        schema["additionalProperties"] = hasattr(cls, "__setpoint_open__")
        return schema

    def field(self, cls: type[Config], info: FieldInfo) -> Schema:
        """The schema of one field, with its help and default.

        Arguments:
            cls: the class that has the field.
            info: the field.

        Returns:
            the schema.
        """
        value = self.values.of(info.type, info.bounds, info.item_bounds)
        schema = dict(self.place(info.type, value))
        text = field_help(cls, info.name)
        if info.environment is not None:
            text = f"{text}\n\nThe variable {info.environment} may give it, too.".strip()
        if text:
            schema["description"] = text
        if not info.type.nested and not info.derived:
            default = info.initial()
            if default is not MISSING:
                schema["default"] = json_value(info.type.dump(default))
        return schema

    def _extends(self) -> Schema:
        text = "Files with fields of this section, which stand below those here."
        return {**NAMES, "description": text}

    def _class(self, cls: type[Config]) -> str:
        name, known = self._name((cls,))
        pointer = _pointer(name)
        if not known:
            self.schemas[name] = self.fields(cls, pointer)
        return pointer

    def _family(self, kind: SectionType) -> str:
        """One of several classes: the fields are those of the class that `type` names."""
        name, known = self._name(kind.classes)
        if known:
            return _pointer(name)
        variants = kind.variants()
        cases: list[Schema] = []
        family: Schema = {
            "type": "object",
            "title": " or ".join(cls.__name__ for cls in kind.classes),
            "properties": {"type": {"enum": list(variants)}},
            "allOf": cases,
        }
        self.schemas[name] = family
        for tag, cls in variants.items():
            chosen = {"properties": {"type": {"const": tag}}, "required": ["type"]}
            cases.append({"if": chosen, "then": {"$ref": self._class(cls)}})
        untold = self._untold(f"{name}.fields", list(variants.values()))
        cases.append({"if": {"not": {"required": ["type"]}}, "then": {"$ref": untold}})
        return _pointer(name)

    def _untold(self, name: str, variants: list[type[Config]]) -> str:
        """What may be set where a layer below has chosen the `type`: the fields of any variant."""
        properties: dict[str, list[Schema]] = {EXTENDS: [self._extends()]}
        known: set[FieldInfo] = set()
        for cls in variants:
            for key, info in cls.__setpoint__.fields.items():
                if info not in known:  # a field that several variants inherit
                    target = {"$ref": f"{self._class(cls)}/properties/{key}"}
                    properties.setdefault(key, []).append(target)
                    known.add(info)
        joined: Schema = {
            key: options[0] if len(options) == 1 else {"anyOf": options}
            for key, options in properties.items()
        }
        self.schemas[name] = {
            "type": "object",
            "properties": joined,
            **_hyphens(joined, f"{_pointer(name)}/properties"),
            # Closed, although the `type` may be one that takes any argument: a misspelt key is far
            # more likely, and is to be marked.
            "additionalProperties": False,
        }
        return _pointer(name)

    def _name(self, classes: tuple[type[Config], ...]) -> tuple[str, bool]:
        """A name for classes, unique in the document, and whether it was given before."""
        if classes in self._names:
            return self._names[classes], True
        name = "_or_".join(cls.__name__ for cls in classes)
        if name in self._names.values():
            # Two classes of one name live in different modules, or in different scopes.
            name = "_or_".join(f"{cls.__module__}.{cls.__qualname__}" for cls in classes)
            name = name.replace("<locals>", "locals")
        unique, count = name, 2
        while unique in self._names.values():
            unique, count = f"{name}.{count}", count + 1
        self._names[classes] = unique
        return unique, False


def _pointer(name: str) -> str:
    return f"#/$defs/{name}"


def _hyphens(properties: Schema, pointer: str) -> Schema:
    """The other spellings of keys; apart, since `properties` are what editors propose."""
    found: Schema = {}
    for key in properties:
        if "_" in key:
            spelling = key.replace("_", "-" if key.count("_") == 1 else "[-_]")
            but = f"(?!{key}$)" if "[" in spelling else ""
            found[f"^{but}{spelling}$"] = {"$ref": f"{pointer}/{key}"}
    return {"patternProperties": found} if found else {}
