"""Definitions of classes in a JSON Schema."""

from __future__ import annotations

from setpoint.config import Config, field
from setpoint.config.component_sections import ImportedComponent
from setpoint.editor_schema.file_schema import json_schema
from setpoint.editor_schema.shape import either, write_once

from .helpers import complaints, validator


class Node(Config):
    size: int = field(default=1, ge=1)
    inner: Node | None = None
    many: tuple[Node, ...] = ()


class Shape(Config):
    area: float = field(default=1.0, gt=0)


class Circle(Shape, type="circle"):
    width: float = field(default=1.0, gt=0)
    radius: float = 1.0


class Group(Shape, type="group"):
    width: float = field(default=2.0, gt=0)
    part_of: Shape | None = None
    radius: str = "none"


class Imported(Shape, ImportedComponent, type="import"):
    pass


class Root(Config):
    node: Node = field(factory=Node)
    shape: Shape = field(factory=Circle)
    alone: Circle = field(factory=Circle)
    either: Circle | Group | None = None


KNOWN = validator(Root)


def test_a_class_that_holds_itself() -> None:
    good = {"size": 2, "inner": {"inner": {"many": [{"size": 3}, {}]}}}
    assert complaints(KNOWN, {"node": good}) == []
    bad = {"inner": {"inner": {"many": [{"size": 0}]}}}
    assert complaints(KNOWN, {"node": bad}) == ["node.inner.inner.many.0.size: minimum"]
    assert list(json_schema(Root)["$defs"]).count("Node") == 1


def test_a_family_that_holds_itself() -> None:
    good = {"type": "group", "part_of": {"type": "group", "part_of": {"type": "circle"}}}
    assert complaints(KNOWN, {"shape": good}) == []
    bad = {"type": "group", "part_of": {"type": "circle", "part_of": None}}
    assert complaints(KNOWN, {"shape": bad}) == ["shape.part_of: additionalProperties"]


def test_without_a_type_the_fields_of_all_variants_are_known() -> None:
    assert complaints(KNOWN, {"either": {"area": 2, "radius": "x"}}) == []
    assert complaints(KNOWN, {"either": {"area": 2, "radius": 3}}) == []
    assert complaints(KNOWN, {"either": {"radius": None}}) == ["either.radius: anyOf"]
    assert complaints(KNOWN, {"either": {"width": -1}}) == ["either.width: exclusiveMinimum"]
    assert complaints(KNOWN, {"either": {"sides": 3}}) == ["either: additionalProperties"]
    assert complaints(KNOWN, {"either": {"type": "circle", "radius": "x"}}) == [
        "either.radius: pattern"
    ]


def test_a_class_with_one_tag_needs_none() -> None:
    for value in ({}, {"type": "circle"}, "circle", {"radius": 2}):
        assert complaints(KNOWN, {"alone": value}) == []
    assert complaints(KNOWN, {"alone": {"type": "group"}}) == ["alone.type: const"]


def test_components_that_are_imported_take_any_argument() -> None:
    good = {"type": "import", "target": "torch.optim.Adagrad", "lr_decay": 0.1, "eps": [1]}
    assert complaints(KNOWN, {"shape": good}) == []
    assert complaints(KNOWN, {"shape": {**good, "area": 0}}) == ["shape.area: exclusiveMinimum"]
    assert complaints(KNOWN, {"shape": {"type": "import", "target": 3}}) == ["shape.target: type"]


def test_fragments_are_allowed_in_each_section() -> None:
    for names in ("a.toml", ["a.toml", "b.yaml"]):
        assert complaints(KNOWN, {"shape": {"extends": names}, "node": {"extends": names}}) == []


def test_two_classes_of_one_name_are_told_apart() -> None:
    def made(least: int) -> type[Config]:
        class Part(Config):
            size: int = field(default=9, ge=least)

        return Part

    one, two = made(1), made(5)

    class Both(Config):
        first: one = field(factory=one)  # pyright: ignore[reportInvalidTypeForm]
        second: two = field(factory=two)  # pyright: ignore[reportInvalidTypeForm]

    known = validator(Both)
    data = {"first": {"size": 3}, "second": {"size": 3}}
    assert complaints(known, data) == ["second.size: minimum"]


# Parts of a schema: alternatives that stay readable for editors, and repeated ones written once.


NUMBER = {"type": "number", "minimum": 1}
WORDS = {"enum": ["a", "b"]}


def test_what_cannot_be_told_apart_is_listed() -> None:
    assert either({"enum": ["a", 3]}, NUMBER) == {"anyOf": [{"enum": ["a", 3]}, NUMBER]}
    assert either(NUMBER, {"type": "number", "maximum": 0}) == {
        "anyOf": [{"type": "number", "maximum": 0}, NUMBER]
    }


def test_what_is_repeated_is_written_once() -> None:
    """A property may have the name of a keyword, and data may look like a schema."""
    part = {"type": "integer", "minimum": 1, "description": "A text of some length, in two places."}
    data = {"enum": [part]}
    made = write_once({"properties": {"items": part, "b": part, "c": data}, "$defs": {"D": data}})
    assert made["properties"]["items"] == made["properties"]["b"] == {"$ref": "#/$defs/_1"}
    assert made["$defs"]["_1"] == part
    found = [made["properties"]["c"], made["$defs"]["D"], made["$defs"]["_2"]]
    assert found == [{"$ref": "#/$defs/_2"}, {"$ref": "#/$defs/_2"}, data]
