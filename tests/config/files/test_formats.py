"""Reading TOML, YAML and JSON: values, positions, and what each refusal says."""

import tomllib

import pytest

from setpoint.config.files.file_document import FileError
from setpoint.config.files.read import parse
from setpoint.config.words.plain_data import PlainScalar

BACKSLASH = (
    "; a backslash in \"...\" begins an escape: write 'C:\\data' in single quotes, or C:/data"
)

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
    ("text", "message"),
    [
        ("a=1\na=2", "f:2:1: the key 'a' is given twice; first on line 1"),
        ("a.b=1\na=2", "f:2:1: the key 'a' is given twice; first on line 1"),
        ("a={b=1,b=2}", "f:1:8: the key 'b' is given twice; first on line 1"),
        ("[a]\n[[a]]", "f:2:3: the key 'a' is given twice; first on line 1"),
        ("a = 0x" + "f" * 5000, "f:1:1: the number has more digits than can be written to a file"),
        ('a = "\\u12"', f"f:1:8: invalid hex value, found '12'{BACKSLASH}"),
        ('a = "C:\\Users"', f"f:1:10: invalid hex value, found 'sers'{BACKSLASH}"),
        ("a = x", "f:1:5: invalid value, found 'x'; text needs quotes"),
        ("a = True", "f:1:5: invalid value, found 'True'; write true"),
        ("a = None", "f:1:5: invalid value, found 'None'; write \"null\" in quotes"),
        ("a", "f:1:2: expected '=' after a key in a key/value pair, found the end of the file"),
        ("a. = 1", "f:1:4: invalid initial character for a key part, found '='"),
        ("[[a]", "f:1:4: expected ']]' at the end of an array declaration, found ']'"),
        ("a = [1, 2\nb = 3", "f:2:1: unclosed array, found 'b'"),
        ('a = "x\nb = 1', "f:1:7: illegal character '\\n', found the end of the line"),
        ('a = "\\q"', f"f:1:8: unescaped '\\' in a string, found '\"'{BACKSLASH}"),
        ('a = "\\ud800"', "f:1:12: escaped character is not a Unicode scalar value, found '\"'"),
        ('a = "\x01"', "f:1:6: illegal character '\\x01', found the character U+0001"),
        ("x = 1\na = [2024-01-31]", "f:2:6: a date is not a type of any field; put it in quotes"),
        (
            "a = 2024-01-31 10:00:00Z",
            "f:1:1: a date with a time is not a type of any field; put it in quotes",
        ),
        ("a = " + "[" * 100_000, "f:1:69: nested deeper than 64 levels"),
        (".".join("a" * 100_000) + " = 1", "f:1:128: nested deeper than 64 levels"),
        ("[" + ".".join("a" * 40) + "]\n" + ".".join("b" * 40) + "=1", None),
        ("a = " + "1" * 4301, "f: a number has more than 4300 digits"),
    ],
)
def test_toml_is_refused_with_its_place(text, message):
    with pytest.raises(FileError) as caught:
        parse(text, "toml", "f")
    assert str(caught.value) == (message or "f:2:47: nested deeper than 64 levels")


@pytest.mark.parametrize("text", ["a = [ # ]\n" * 65, 'a = """ \n]]]]]""" \n' + "a = [" * 65])
def test_brackets_in_texts_and_comments_close_nothing(text: str) -> None:
    with pytest.raises(FileError, match="nested deeper than 64 levels"):
        parse(text, "toml", "f")


# JSON.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n "a": 2}', "f:2:2: the key 'a' is given twice; first on line 1"),
        ('{"a": NaN}', "f:1:7: NaN is not JSON; no field takes it"),
        ('{"a": Infinity}', 'f:1:7: Infinity is not JSON; write "inf" in quotes'),
        ('{"a": True}', "f:1:7: expecting value, found 'True'"),
        ('{"a": text}', "f:1:7: expecting value, found 'text'"),
        ('{"a": 01}', "f:1:8: expecting ',' delimiter, found '1'"),
        ("{a: 1}", "f:1:2: expecting property name enclosed in double quotes, found 'a'"),
        ("{'a': 1}", 'f:1:2: expecting property name enclosed in double quotes, found "\'"'),
        ('{"a": 1,}', "f:1:9: expecting property name enclosed in double quotes, found '}'"),
        ('{"a": 1} x', "f:1:10: extra data, found 'x'"),
        ("// x\n{}", "f:1:1: expecting value, found '/'"),
        ('{"a": 1', "f:1:8: expecting ',' delimiter, found the end of the file"),
        ('{"a": "\t"}', "f:1:8: invalid control character, found the character U+0009"),
        ('{"a": "\\u12"}', "f:1:9: invalid \\uXXXX escape, found 'u12'"),
        (
            '{"a": "\\ud800"}',
            "f:1:7: the text holds half a surrogate pair, which is not a character",
        ),
        ("[1]", "f:1:1: expected '{': the top level is a mapping of keys to values"),
        ("[" * 100_000, "f:1:65: nested deeper than 64 levels"),
        (
            '{"a": ' + "1" * 4301 + "}",
            "f:1:7: a number of 4301 digits is refused; at most 4300 are read",
        ),
    ],
)
def test_json_is_refused_with_its_place(text, message):
    with pytest.raises(FileError) as caught:
        parse(text, "json", "f")
    assert str(caught.value) == message


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
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "f:3:1: the key 'a' is given twice; first on line 1"),
        ("1: a\n'1': b", "f:2:1: the key '1' is given twice; first on line 1"),
        ("a: !!int 1", "f:1:4: the tag '!!int' is not supported; fields have types"),
        ("a: &x !foo 1", "f:1:7: the tag '!foo' is not supported; fields have types"),
        (
            "a: !!python/object/apply:os.system [ls]",
            "f:1:4: the tag '!!python/object/apply:os.system' is not supported; fields have types",
        ),
        ("!x\na: 1", "f:1:1: the tag '!x' is not supported; fields have types"),
        ("!" * 200_000, f"f:1:1: the tag '{'!' * 60}' is not supported; fields have types"),
        ("%YAML 1.1\n---\na: 1", "f:1:1: expected YAML 1.2, without other directives"),
        (
            "%YAML 1.2\n%TAG ! tag:x,2000:\n---\na: 1",
            "f:1:1: expected YAML 1.2, without other directives",
        ),
        ("<<: {a: 1}", "f:1:1: the merge key '<<' is not supported; use `extends`"),
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
        ("a: b: c", "f:1:5: not valid YAML: mapping values are not allowed here"),
        ("a: [1, 2", "f:1:9: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ('a: "x', "f:1:6: not valid YAML: found unexpected end of stream"),
        ('a: "\\UFFFFFFFF"', "f:1:1: not valid YAML near here"),
        ('a: "\\ud800"', "f:1:4: the text holds half a surrogate pair, which is not a character"),
        ("a:\n\t- b", r"f:2:1: not valid YAML: found character '\t' that cannot start any token"),
        ("a: \x01", "f:1:4: the character U+0001 is not allowed in YAML"),
        ("a: @b", "f:1:4: not valid YAML: found character '@' that cannot start any token"),
        ("a: b\nc", "f:2:2: not valid YAML: could not find expected ':'"),
        ('a: "x" y', "f:1:8: not valid YAML: expected <block end>, but found '<scalar>'"),
    ],
)
def test_yaml_is_refused_with_its_place(text, message):
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
