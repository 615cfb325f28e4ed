from __future__ import annotations

from setpoint.config.json_schema.shape import NULL, REFERENCE, either, types_of, whole

NUMBER = {"type": "number", "minimum": 1}
WORDS = {"enum": ["a", "b"]}
SECTION = {"$ref": "#/$defs/Part"}


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


def test_what_cannot_be_told_apart_is_listed() -> None:
    assert either(WORDS, NUMBER) == {"anyOf": [WORDS, NUMBER]}
    assert either(NUMBER, {"type": "number", "maximum": 0}) == {
        "anyOf": [{"type": "number", "maximum": 0}, NUMBER]
    }


def test_objects_are_held_against_their_own_schema() -> None:
    chosen = either(SECTION, NULL)
    assert chosen == {"if": {"type": "object"}, "then": SECTION, "else": NULL}
    again = either(chosen, WORDS)
    assert again["then"] == SECTION
    assert again["else"] == {"anyOf": [WORDS, NULL]}


def test_anything_is_anything() -> None:
    assert either({}, NUMBER) == {}


def test_small_parts() -> None:
    assert whole("a|b") == "^(?:a|b)$"
    assert (types_of({}), types_of(NUMBER), types_of(NULL)) == ([], ["number"], ["null", "string"])
