"""The table at the end."""

from __future__ import annotations

import io

import pytest

from setpoint.track.console import plain_table, print_table

from .test_progress import Terminal

ROWS = [("unigram", "4.81"), ("this model", "2.05", "best")]


def test_plain() -> None:
    assert plain_table("Held-out text", ROWS, columns=("", "bits per byte")) == (
        "Held-out text\n"
        "              bits per byte\n"
        "  unigram              4.81\n"
        "  this model           2.05  best"
    )
    assert plain_table("Nothing", []) == "Nothing"


def test_a_pipe_gets_plain_text() -> None:
    stream = io.StringIO()
    print_table("Held-out text", ROWS, stream=stream)
    assert stream.getvalue() == plain_table("Held-out text", ROWS) + "\n"


def test_a_terminal_gets_a_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    print_table("Held-out text", [("a [b]", "1"), ("c", "2", "3")], columns=("x",), stream=stream)
    text = stream.getvalue()
    assert "Held-out text" in text and "a [b]" in text and "┃" in text


def test_a_sentence_does_not_push_the_numbers_away() -> None:
    rows = [("state", "stopped since somebody has asked for it"), ("steps", "12")]
    assert plain_table("run", rows).splitlines()[2] == "  steps  12"
