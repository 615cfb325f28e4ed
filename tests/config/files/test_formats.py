"""Reading TOML, YAML and JSON: values, positions, and what each refusal says."""

import tomllib

import pytest

from setpoint.config.files.file_document import FileError
from setpoint.config.files.read import parse
from setpoint.config.words.plain_data import PlainScalar

from ...support.snapshots import refused

TEXT = """\
name = "tiny"
betas = [0.9, 0.95]  # [not] = "a list"

[model.moe]
"top k" . value = 2

[[sources]]
path = 'a'
[[sources]]
path = "b"
[sources.filter]
words = [
  "x = [",
  {min = 1, "ma\\u0078" = 2},
]
"""


def test_values_are_those_of_the_standard_library():
    assert parse(TEXT, "toml", "f").data == tomllib.loads(TEXT)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("betas", 1), (2, 15)),
        (("model",), (4, 2)),
        (("model", "moe"), (4, 8)),
        (("model", "moe", "top k", "value"), (5, 11)),
        (("sources",), (7, 3)),
        (("sources", 0), (7, 1)),
        (("sources", 1), (9, 1)),
        (("sources", 1, "filter", "words"), (12, 1)),
        (("sources", 1, "filter", "words", 1, "min"), (14, 4)),
        (("sources", 1, "filter", "words", 1, "max"), (14, 13)),
        (("sources", 1, "filter", "words", 7, "max"), (12, 1)),
        (("sources", 2), (7, 3)),
        (("nowhere",), None),
    ],
)
def test_positions_in_toml_are_found(path, place):
    assert parse(TEXT, "toml", "f").locate(path) == place
    assert parse(TEXT.replace("\n", "\r\n"), "toml", "f").locate(path) == place


def test_multi_line_strings_hide_what_they_hold():
    text = 'a = """\n[x]\n\\""" """"\nc = \'\'\'\n#"\'\'\'\'\'\nd = ""\ne = """"""\nf = 1'
    document = parse(text, "toml", "f")
    assert document.data == {"a": '[x]\n""" "', "c": "#\"''", "d": "", "e": "", "f": 1}
    places = [document.locate((key,)) for key in "acdef"]
    assert places == [(1, 1), (4, 1), (6, 1), (7, 1), (8, 1)]


@pytest.mark.parametrize(
    "text",
    [
        "a=1\na=2", "a.b=1\na=2", "a={b=1,b=2}", "[a]\n[[a]]", "a = 0x" + "f" * 5000, 'a = "\\u12"',
        'a = "C:\\Users"', "a = x", "a = True", "a = None", "a", "a. = 1", "[[a]",
        "a = [1, 2\nb = 3", 'a = "x\nb = 1', 'a = "\\q"', 'a = "\\ud800"', 'a = "\x01"',
        "x = 1\na = [2024-01-31]", "a = 2024-01-31 10:00:00Z", "a = " + "[" * 100_000,
        ".".join("a" * 100_000) + " = 1",
        "[" + ".".join("a" * 40) + "]\n" + ".".join("b" * 40) + "=1", "a = " + "1" * 4301,
    ],
)  # fmt: skip
def test_toml_is_refused_with_its_place(text):
    with refused(FileError):
        parse(text, "toml", "f")


@pytest.mark.parametrize("text", ["a = [ # ]\n" * 65, 'a = """ \n]]]]]""" \n' + "a = [" * 65])
def test_brackets_in_texts_and_comments_close_nothing(text: str) -> None:
    with refused(FileError):
        parse(text, "toml", "f")


# JSON.


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1,\n "a": 2}', '{"a": NaN}', '{"a": Infinity}', '{"a": True}', '{"a": text}',
        '{"a": 01}', "{a: 1}", "{'a': 1}", '{"a": 1, 2}', '{"a": 1} x', "// x\n{}", '{"a": 1',
        '{"a": "\t"}', '{"a": "\\u12"}', '{"a": "\\ud800"}', "[1]", "[" * 100_000,
        '{"a": ' + "1" * 4301 + "}",
    ],
)  # fmt: skip
def test_json_is_refused_with_its_place(text):
    with refused(FileError):
        parse(text, "json", "f")


# YAML.


YAML = """\
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


def test_yaml_is_read_as_plain_scalars():
    model = {"dim": "64", "moe": None}
    assert parse(YAML, "yaml", "f").data == {
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
def test_words_for_null_in_yaml(text):
    assert parse(f"a: {text}", "yaml", "f").data == {"a": None}
    assert parse(f"a: '{text}'", "yaml", "f").data == {"a": text}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("model", "dim"), (5, 3)), (("sources", 0), (8, 5)), (("sources", 0, "n", 1), (8, 22)),
        (("sources", 2), (7, 1)), (("again",), (12, 1)), (("again", "dim"), (5, 3)),
        (("empty", "x"), (14, 1)), (("nowhere",), None),
    ],
)  # fmt: skip
def test_positions_in_yaml_are_found(path, place):
    assert parse(YAML, "yaml", "f").locate(path) == place
    assert parse(YAML.replace("\n", "\r\n"), "yaml", "f").locate(path) == place


def test_aliases_are_copies():
    data = parse("a: &a {x: [1]}\nb: *a\nc: [*a]", "yaml", "f").data
    data["b"]["x"].append("2")
    assert data["a"] == {"x": ["1"]} and data["c"] == [{"x": ["1"]}]
    assert parse("&k a: &v 1\nb: *k\nc: *v", "yaml", "f").data == {"a": "1", "b": "a", "c": "1"}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: 2\na: 3", "1: a\n'1': b", "a: !!int 1", "a: &x !foo 1",
        "a: !!python/object/apply:os.system [ls]", "!x\na: 1", "!" * 200_000,
        "%YAML 1.1\n---\na: 1", "%YAML 1.2\n%TAG ! tag:x,2000:\n---\na: 1", "<<: {a: 1}",
        "? [a]\n: 1", "&a a: 1\n*a : 2", ": 1", "a: *b", "a: &b [*b]", BOMB, "a: 1\n---\nb: 2",
        "- a", "a: " + "[" * 100_000, "a: &a " + "[" * 40 + "]" * 40 + "\nb: " + "[" * 40 + "*a",
        "a: b: c", "a: [1, 2", 'a: "x', 'a: "\\UFFFFFFFF"', 'a: "\\ud800"', "a:\n\t- b", "a: \x01",
        "a: @b", "a: b\nc", 'a: "x" y',
    ],
)  # fmt: skip
def test_yaml_is_refused_with_its_place(text):
    with refused(FileError):
        parse(text, "yaml", "f")


def test_limits_are_not_lower_than_stated():
    assert str(parse("a: " + "[" * 63 + "]" * 63, "yaml", "f").data).count("[") == 63
    long = parse("a: " + "1" * 4300 + f"\nb: '{'1' * 5000}'", "yaml", "f").data
    assert long == {"a": "1" * 4300, "b": "1" * 5000}
    assert parse("'<<': 1\n'': 2", "yaml", "f").data == {"<<": "1", "": "2"}


def test_an_anchor_given_anew_inside_its_own_value_is_the_later_one():
    assert parse("a: &b\n  c: &b x\nd: *b\n", "yaml", "f").data == {"a": {"c": "x"}, "d": "x"}
    with refused(FileError):
        parse("a: &b 1\nb: &b [*b]\n", "yaml", "f")
