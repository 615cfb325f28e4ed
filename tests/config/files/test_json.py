"""Reading JSON: values, positions, and every refusal word for word."""

import pytest

from setpoint.config.files.file_document import FileError
from setpoint.config.files.read import parse

TEXT = '{"a": 1,\n "b": [1, {"c\\u00e9": null}],\r\n\t"": {"d": "x\\"[{", "e": [[], -1.5e-3]}\n}'


def test_values():
    data = {"a": 1, "b": [1, {"cé": None}], "": {"d": 'x"[{', "e": [[], -0.0015]}}
    assert parse(TEXT, "json", "f").data == data


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("a",), (1, 2)),
        (("b", 1, "cé"), (2, 12)),
        (("", "e", 1), (3, 31)),
        (("", "e", 2, "x"), (3, 21)),
        (("nowhere", "x"), None),
    ],
)
def test_positions(path, place):
    assert parse(TEXT, "json", "f").locate(path) == place


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n "a": 2}', "f:2:2: the key 'a' is given twice; first on line 1"),
        ('{"a": NaN}', "f:1:7: NaN is not JSON; no field takes it"),
        ('{"a": Infinity}', 'f:1:7: Infinity is not JSON; write "inf" in quotes'),
        ('{"a": True}', "f:1:7: expected value, found 'True'; write true"),
        ('{"a": text}', "f:1:7: expected value, found 'text'; text needs quotes"),
        ('{"a": 01}', "f:1:8: expected ',' delimiter, found '1'"),
        ("{a: 1}", "f:1:2: expected property name enclosed in double quotes, found 'a'"),
        (
            "{'a': 1}",
            "f:1:2: expected property name enclosed in double quotes, "
            'found "\'"; JSON puts text in double quotes',
        ),
        ('{"a": 1,}', "f:1:8: expected no comma before '}'"),
        ('{"a": 1} x', "f:1:10: extra data, found 'x'"),
        ("// x\n{}", "f:1:1: expected value, found '/'; JSON has no comments"),
        ('{"a": 1', "f:1:8: expected ',' delimiter, found the end of the file"),
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
def test_refusals(text, message):
    with pytest.raises(FileError) as caught:
        parse(text, "json", "f")
    assert str(caught.value) == message
