"""Reading YAML: values, positions, and every refusal word for word."""

import pytest

from setpoint.config.files.file_document import FileError
from setpoint.config.files.read import parse
from setpoint.config.words.plain_data import PlainScalar

TEXT = """\
%YAML 1.2
---
name: tiny # comment
model: &model
  dim: 64
  'moe': ~
sources:
  - {path: a, n: [1, 2]}
  - path: |
      text
    no: "1"
again: *model
1e3: null
empty:
"""


def test_values():
    model = {"dim": "64", "moe": None}
    assert parse(TEXT, "yaml", "f").data == {
        "name": "tiny",
        "model": model,
        "sources": [{"path": "a", "n": ["1", "2"]}, {"path": "text\n", "no": "1"}],
        "again": model,
        "1e3": None,
        "empty": None,
    }


def test_only_scalars_without_quotes_are_plain():
    data = parse("a: [a, 'a', \"a\"]\nb: |\n  a\nc: a\n b", "yaml", "f").data
    kinds = [type(item) for item in [*data["a"], data["b"], data["c"]]]
    assert kinds == [PlainScalar, str, str, str, PlainScalar]


@pytest.mark.parametrize("text", ["null", "Null", "NULL", "~", ""])
def test_nulls(text):
    assert parse(f"a: {text}", "yaml", "f").data == {"a": None}
    assert parse(f"a: '{text}'", "yaml", "f").data == {"a": text}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("model", "dim"), (5, 3)),
        (("sources", 0), (8, 5)),
        (("sources", 0, "n", 1), (8, 22)),
        (("sources", 2), (7, 1)),
        (("again",), (12, 1)),
        (("again", "dim"), (5, 3)),
        (("empty", "x"), (14, 1)),
        (("nowhere",), None),
    ],
)
def test_positions(path, place):
    assert parse(TEXT, "yaml", "f").locate(path) == place
    assert parse(TEXT.replace("\n", "\r\n"), "yaml", "f").locate(path) == place


def test_aliases_are_copies():
    data = parse("a: &a {x: [1]}\nb: *a\nc: [*a]", "yaml", "f").data
    data["b"]["x"].append("2")
    assert data["a"] == {"x": ["1"]} and data["c"] == [{"x": ["1"]}]
    assert parse("&k a: &v 1\nb: *k\nc: *v", "yaml", "f").data == {"a": "1", "b": "a", "c": "1"}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "f:3:1: the key 'a' is given twice; first on line 1"),
        ("1: a\n'1': b", "f:2:1: the key '1' is given twice; first on line 1"),
        ("a: !!int 1", "f:1:4: the tag '!!int' is refused; a value is read by its field's type"),
        (
            "a: !!python/object/apply:os.system [ls]",
            "f:1:4: the tag '!!python/object/apply:os.system' is refused; "
            "a value is read by its field's type",
        ),
        ("!x\na: 1", "f:1:1: the tag '!x' is refused; a value is read by its field's type"),
        (
            "!" * 200_000,
            f"f:1:1: the tag '{'!' * 60}' is refused; a value is read by its field's type",
        ),
        ("%TAG ! x:\n---\na: 1", "f:1:1: expected no directive but '%YAML 1.2'"),
        ("%YAML 1.1\n---\na: 1", "f:1:1: expected no directive but '%YAML 1.2'"),
        ("<<: {a: 1}", "f:1:1: the merge key '<<' is refused; use `extends`"),
        ("? [a]\n: 1", "f:1:3: expected a key that is text"),
        ("&a a: 1\n*a : 2", "f:2:1: expected a key that is text"),
        (": 1", "f:1:1: expected a key before ':'"),
        (
            "a: *b",
            "f:1:4: the anchor 'b' is not defined above; text that begins with '*' needs quotes",
        ),
        ("a: &b [*b]", "f:1:8: the anchor 'b' is used inside itself"),
        (BOMB, "f:6:10: aliases repeat more than 100000 keys and values"),
        ("a: 1\n---\nb: 2", "f:2:1: expected the end of the file; one file is one document"),
        ("- a", "f:1:1: expected 'key: value': the top level is a mapping of keys to values"),
        ("a: " + "[" * 100_000, "f:1:67: nested deeper than 64 levels"),
        ("a: &a " + "[" * 40 + "]" * 40 + "\nb: " + "[" * 40 + "*a", None),
        ("a: b: c", "f:1:5: expected no ':' here; text with ': ' needs quotes"),
        ("a: [1, 2", "f:1:9: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ('a: "x', "f:1:6: not valid YAML: found unexpected end of stream"),
        (
            'a: "\\UFFFFFFFF"',
            "f:1:1: not valid YAML near here: Python int too large to convert to C int",
        ),
        ('a: "\\ud800"', "f:1:4: the text holds half a surrogate pair, which is not a character"),
        ("a:\n\t- b", "f:2:1: expected spaces; YAML refuses tabs here"),
        ("a: \x01", "f:1:4: the character U+0001 is not allowed in YAML"),
        ("a: @b", "f:1:4: expected a key or a value, found '@'; such text needs quotes"),
        ("a: b\nc", "f:2:2: expected ':' after the key above, found the end of the file"),
        ('a: "x" y', "f:1:8: expected the next key or item, indented like those above, found 'y'"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(FileError) as caught:
        parse(text, "yaml", "f")
    assert str(caught.value) == (message or "f:2:44: nested deeper than 64 levels")


def test_limits_are_not_lower_than_stated():
    assert str(parse("a: " + "[" * 63 + "]" * 63, "yaml", "f").data).count("[") == 63
    long = parse("a: " + "1" * 4300 + f"\nb: '{'1' * 5000}'", "yaml", "f").data
    assert long == {"a": "1" * 4300, "b": "1" * 5000}
    assert parse("'<<': 1\n'': 2", "yaml", "f").data == {"<<": "1", "": "2"}


def test_an_anchor_given_anew_inside_its_own_value_is_the_later_one():
    assert parse("a: &b\n  c: &b x\nd: *b\n", "yaml", "f").data == {"a": {"c": "x"}, "d": "x"}
    with pytest.raises(FileError, match="used inside itself"):
        parse("a: &b 1\nb: &b [*b]\n", "yaml", "f")
