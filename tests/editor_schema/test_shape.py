from __future__ import annotations

from jsonschema import Draft202012Validator

from setpoint.editor_schema.shape import NULL, REFERENCE, either, hint, types_of, write_once

NUMBER = {"type": "number", "minimum": 1}
WORDS = {"enum": ["a", "b"]}


def test_what_differs_by_type_stands_side_by_side() -> None:
    assert either(NUMBER, {"type": "array", "items": NUMBER}) == {
        "type": ["number", "array"],
        "minimum": 1,
        "items": NUMBER,
    }


def test_texts_fit_one_of_the_patterns() -> None:
    assert either(NUMBER, NULL, REFERENCE)["pattern"] == f"^null$|{REFERENCE['pattern']}"
    assert "pattern" not in either({"type": "string"}, NULL)
    assert either(REFERENCE, REFERENCE) == REFERENCE


def test_words_stand_beside_other_types() -> None:
    known = Draft202012Validator(either(WORDS, NUMBER, REFERENCE))
    for value in ("a", 1, "${x}"):
        assert not list(known.iter_errors(value))
    for value, message in (
        ("c", "'c' is not one of ['a', 'b']"),
        (0, "0 is less than the minimum of 1"),
        (None, "None is not of type 'number', 'string'"),
    ):
        assert [error.message for error in known.iter_errors(value)] == [message]


def test_what_cannot_be_told_apart_is_listed() -> None:
    assert either({"enum": ["a", 3]}, NUMBER) == {"anyOf": [{"enum": ["a", 3]}, NUMBER]}
    assert either(NUMBER, {"type": "number", "maximum": 0}) == {
        "anyOf": [{"type": "number", "maximum": 0}, NUMBER]
    }


def test_a_hint_refuses_nothing() -> None:
    assert Draft202012Validator(hint(WORDS)).is_valid("c")


def test_what_is_repeated_is_written_once() -> None:
    """A property may have the name of a keyword, and data may look like a schema."""
    part = {"type": "integer", "minimum": 1, "description": "A text of some length, in two places."}
    data = {"enum": [part]}
    made = write_once({"properties": {"items": part, "b": part, "c": data}, "$defs": {"D": data}})
    assert made["properties"]["items"] == made["properties"]["b"] == {"$ref": "#/$defs/_1"}
    assert made["$defs"]["_1"] == part
    found = [made["properties"]["c"], made["$defs"]["D"], made["$defs"]["_2"]]
    assert found == [{"$ref": "#/$defs/_2"}, {"$ref": "#/$defs/_2"}, data]


def test_anything_is_anything() -> None:
    assert either({}, NUMBER) == {}


def test_small_parts() -> None:
    assert (types_of({}), types_of(NUMBER), types_of(NULL)) == ([], ["number"], ["null", "string"])
