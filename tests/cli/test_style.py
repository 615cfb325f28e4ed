from __future__ import annotations

import io

import pytest

from setpoint.cli.output import styled, table, wrapped


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "coloured"),
    [
        ({}, True),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": "0"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colour(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], coloured: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert (styled("x", "1", Terminal()) == "\033[1mx\033[0m") is coloured
    assert styled("x", "1", io.StringIO()) == "x"


def test_columns_are_aligned_and_lines_end_with_text() -> None:
    assert table([("a", "bbb"), ("cc", "")]) == "a   bbb\ncc"
    assert table([("a", "b")], ["long", "x"]) == "long  x\na     b"
    assert table([]) == ""


def test_paragraphs_break_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "word " * 30
    assert wrapped(text.strip(), "  ") == "  " + text.strip()
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "50")
    lines = wrapped(text, "  ").splitlines()
    assert len(lines) > 1
    assert all(line.startswith("  word") and len(line) <= 50 for line in lines)
