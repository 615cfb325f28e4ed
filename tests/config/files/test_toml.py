"""Reading TOML: values, positions, and every refusal word for word."""

import tomllib

import pytest

from setpoint.config.files.file_document import FileError
from setpoint.config.files.read import parse

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
def test_positions(path, place):
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
        ('a = "\\u12"', "f:1:8: invalid hex value, found '12'"),
        ("a = x", "f:1:5: invalid value, found 'x'; text needs quotes"),
        ("a = True", "f:1:5: invalid value, found 'True'; write true"),
        ("a = None", "f:1:5: invalid value, found 'None'; write \"null\" in quotes"),
        ("a", "f:1:2: expected '=' after a key in a key/value pair, found the end of the file"),
        ("a. = 1", "f:1:4: invalid initial character for a key part, found '='"),
        ("[[a]", "f:1:4: expected ']]' at the end of an array declaration, found ']'"),
        ("a = [1, 2\nb = 3", "f:2:1: unclosed array, found 'b'"),
        ('a = "x\nb = 1', "f:1:7: illegal character '\\n', found the end of the line"),
        ('a = "\\q"', "f:1:8: unescaped '\\' in a string, found '\"'"),
        ('a = "\\ud800"', "f:1:12: escaped character is not a Unicode scalar value, found '\"'"),
        ('a = "\x01"', "f:1:6: illegal character '\\x01', found the character U+0001"),
        (
            "x = 1\na = [2024-01-31]",
            "f:2:6: a date is not a type that fields have; put it in quotes",
        ),
        (
            "a = 2024-01-31 10:00:00Z",
            "f:1:1: a date with a time is not a type that fields have; put it in quotes",
        ),
        ("a = " + "[" * 100_000, "f:1:69: nested deeper than 64 levels"),
        (".".join("a" * 100_000) + " = 1", "f:1:128: nested deeper than 64 levels"),
        ("[" + ".".join("a" * 40) + "]\n" + ".".join("b" * 40) + "=1", None),
        ("a = " + "1" * 4301, "f:1:5: a number of 4301 digits is refused; at most 4300 are read"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(FileError) as caught:
        parse(text, "toml", "f")
    assert str(caught.value) == (message or "f:2:47: nested deeper than 64 levels")


@pytest.mark.parametrize(
    "text",
    [
        "a = [\n" * 65,
        'a = ["]",\n' * 65,
        "a = [ # ]\n" * 65,
        "a = [ ']' ,\n" * 65,
        'a = """ \n]]]]]""" \n' + "a = [" * 65,
    ],
)
def test_brackets_in_texts_and_comments_close_nothing(text: str) -> None:
    with pytest.raises(FileError, match="nested deeper than 64 levels"):
        parse(text, "toml", "f")
