"""Whatever a file holds, reading it ends in a document or in a `FileError`."""

import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from setpoint.config.files.file_document import FileError
from setpoint.config.files.read import decode, parse
from setpoint.config.files.toml import scan_toml

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

PIECES = {
    "toml": [
        *"ab=.[]{},\"'\\\n #1-_é",
        *("[[", "]]", '"""', "'''", "\r\n", "0x", "1.5", "true", "inf", "2024-01-01", "\\u"),
    ],
    "json": [
        *'{}[],:"\\1-0.e\n \té\x00',
        *('"a"', '"a":', "\\ud800", "\\u", "true", "null", "NaN", "Infinity", "//"),
    ],
    "yaml": [
        *"ab:-[]{},|>'\"\\\n \t#%~1@`\u2028\x85\ufeff",
        *(": ", "- ", "? ", "&a ", "*a", "!t ", "\n  ", " #", "---", "...", "<<", "|2", "|-"),
        *("\r\n", "\\x", "\\U0011FFFF", "%YAML 1.2"),
    ],
}


def check(text, format):
    try:
        document = parse(text, format, "f")
    except FileError as error:
        assert str(error).startswith("f:") and "\n" not in str(error)
        return
    assert type(document.data) is dict
    check_places(document, document.data, ())


def check_places(document, value, path):
    """Every key and item is found, at a character of its own text."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        inner = (*path, key)
        line, column = document.locate(inner)
        lines = document.text.split("\n")
        assert 1 <= line <= len(lines) and 1 <= column <= len(lines[line - 1]) + 1
        if isinstance(key, str) and document.format != "yaml" and "\\" not in document.text:
            assert key in document.text.split("\n", line - 1)[-1][column - 1 :]
        if isinstance(child, (dict, list)):
            check_places(document, child, inner)


@pytest.mark.parametrize("format", ["toml", "json", "yaml"])
def test_any_pieces_text_and_bytes(format):
    @SETTINGS
    @given(
        st.lists(st.sampled_from(PIECES[format]), max_size=25).map("".join)
        | st.text(max_size=40)
        | st.binary(max_size=40)
    )
    def run(data):
        if isinstance(data, bytes):
            try:
                data = decode(data, format, "f")
            except FileError as error:
                assert "UTF-" in str(error)
                return
        check(data, format)

    run()


SEED = {
    "toml": 'a = 1\n[b.c]\nd = [1, {e = "x"}]\n[[f]]\n"g h" = \'y\'\n[f.i]\nj = """\nz"""\n',
    "json": '{"a": 1, "b": {"c": [1, {"e": "x\\n"}]}, "f": [true, null, -1.5e3]}',
    "yaml": "a: 1\nb: &b\n  c: [1, {e: 'x'}]\nf:\n- g: *b\n  h: |\n    text\n- \"i\\n\"\n",
}


@pytest.mark.parametrize("format", ["toml", "json", "yaml"])
def test_one_file_damaged(format):
    seed = SEED[format]
    check(seed, format)

    @SETTINGS
    @given(
        st.integers(0, len(seed)),
        st.integers(0, 6),
        st.one_of(st.sampled_from(PIECES[format]), st.text(max_size=3)),
    )
    def run(start, length, piece):
        check(seed[:start] + piece + seed[start + length :], format)

    run()


@SETTINGS
@given(st.lists(st.sampled_from(PIECES["toml"]), max_size=25).map("".join))
def test_valid_toml_has_no_key_twice(text):
    try:
        tomllib.loads(text)
    except ValueError:
        return
    scan_toml(text, "f")
