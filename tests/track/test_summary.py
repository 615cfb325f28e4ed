"""The table at the end."""

from __future__ import annotations

import io

import pytest

from setpoint.track.console import print_table

from .test_progress import Terminal

ROWS = [("unigram", "4.81"), ("this model", "2.05", "best")]


def test_a_pipe_gets_plain_text() -> None:
    stream = io.StringIO()
    print_table("Held-out text", ROWS, columns=("", "bits per byte"), stream=stream)
    assert stream.getvalue() == (
        "Held-out text\n"
        "              bits per byte\n"
        "  unigram     4.81\n"
        "  this model  2.05           best\n"
    )


def test_a_terminal_gets_a_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    print_table("Held-out text", [("a [b]", "1"), ("c", "2", "3")], columns=("x",), stream=stream)
    text = stream.getvalue()
    assert "Held-out text" in text and "a [b]" in text and "┃" in text
