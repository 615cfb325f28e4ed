"""The schemas of sections, each written once under `$defs` and referred to from everywhere."""

from __future__ import annotations

from setpoint.config import (
    MISSING,
    FieldInfo,
    Node,
    OptionalType,
    SectionType,
    plain,
)
from setpoint.editor_schema.help import class_help, field_help
from setpoint.editor_schema.shape import PRESET, Schema, either, hint, inside
from setpoint.editor_schema.values import FREE, Values

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
        self._names: dict[tuple[type[Node], ...], str] = {}

    def section(self, kind: SectionType, fresh: bool = False) -> list[Schema]:
        """The schemas of what can stand where a section is wanted.

        Arguments:
            fresh: whether nothing stands there yet, as in a list, so that `type` must be given.
        """
        tags = list(kind.candidates())
        only = kind.only()
        pointer = self._class(only) if only is not None else self._family(kind)
        section: Schema = {"type": "object", **inside([{"$ref": pointer}])}
        if fresh and only is None:
            section["required"] = ["type"]
        return [section, {"enum": tags}] if tags else [section]

    def free(self) -> Schema:
        """The schema of the area whose keys are the user's own."""
        keys: Schema = {
            "propertyNames": {"pattern": r"^[^_.][^.]*$"},
            "additionalProperties": {"$ref": _pointer(FREE)},
        }
        self.schemas[FREE] = keys
        return {"type": "object", **keys}

    def fields(self, cls: type[Node]) -> Schema:
        """The schema of a section's fields."""
        schema: Schema = {"title": cls.__name__}
        if class_help(cls):
            schema["description"] = class_help(cls)
        tag = cls.__setpoint__.tag
        properties: Schema = {} if tag is None else {"type": {"const": tag}}
        for name, info in cls.__setpoint__.fields.items():
            properties[name] = self.field(cls, info)
        properties.setdefault(EXTENDS, self._extends())
        schema["properties"] = properties
        # A component that is imported by its path has whatever arguments its target has.
        schema["additionalProperties"] = hasattr(cls, "__setpoint_open__")
        return schema

    def field(self, cls: type[Node], info: FieldInfo) -> Schema:
        """The schema of one field, with its help and default."""
        kind = info.type
        options = self.values.options(kind, info.bounds, info.item_bounds)
        parts = kind.parts if isinstance(kind, OptionalType) else (kind,)
        if any(isinstance(part, SectionType) for part in parts):
            options.append(PRESET)
        schema = either(*options)
        text = field_help(cls, info.name)
        if info.environment is not None:
            text = f"{text}\n\nThe variable {info.environment} may give it, too.".strip()
        if text:
            schema = {"description": text, **schema}
        if not info.type.nested and not info.derived:
            default = info.initial()
            if default is not MISSING:
                schema["default"] = plain(info.type.dump(default))
        return schema

    def _extends(self) -> Schema:
        text = "Files with fields of this section, which stand below those here."
        return {**NAMES, "description": text}

    def _class(self, cls: type[Node]) -> str:
        name, known = self._name((cls,))
        if not known:
            self.schemas[name] = self.fields(cls)
        return _pointer(name)

    def _family(self, kind: SectionType) -> str:
        """One of several classes: the fields are those of the class that `type` names."""
        name, known = self._name(kind.classes)
        if known:
            return _pointer(name)
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
            cases.append({"if": chosen, "then": {"$ref": self._class(cls)}})
        any_of_them = {"$ref": self._untold(f"{name}.fields", list(variants.values()))}
        family.update({"else": any_of_them, **hint(any_of_them)})
        return _pointer(name)

    def _untold(self, name: str, variants: list[type[Node]]) -> str:
        """What may be set where a layer below has chosen the `type`: the fields of any variant."""
        properties: dict[str, list[Schema]] = {EXTENDS: [self._extends()]}
        for cls in variants:
            for key, info in cls.__setpoint__.fields.items():
                schema = self.field(cls, info)
                if schema not in properties.setdefault(key, []):
                    properties[key].append(schema)
        self.schemas[name] = {
            "properties": {
                key: options[0] if len(options) == 1 else _of_any(options)
                for key, options in properties.items()
            },
            # Closed, although the `type` may be one that takes any argument: a misspelt key is far
            # more likely, and is to be marked.
            "additionalProperties": False,
        }
        return _pointer(name)

    def _name(self, classes: tuple[type[Node], ...]) -> tuple[str, bool]:
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


def _of_any(options: list[Schema]) -> Schema:
    """One field of several variants: what each takes, with the help of the first."""
    help = {key: text for key, text in options[0].items() if key == "description"}
    if all(
        "default" in option and option["default"] == options[0]["default"] for option in options
    ):
        help["default"] = options[0]["default"]
    taken: list[Schema] = []
    for option in options:
        bare = {
            key: value for key, value in option.items() if key not in ("description", "default")
        }
        if bare not in taken:
            taken.append(bare)
    # Of one schema a validator says which keyword is not met; of `anyOf` only that none fits.
    return {**help, **(taken[0] if len(taken) == 1 else inside([{"anyOf": options}]))}
