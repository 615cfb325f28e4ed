from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from ..snapshots import compare
from .conftest import CommandLine


def test_settings_that_no_text_can_be_drawn_with(transcript: Callable[[list[str]], str]) -> None:
    lines = [
        "generate",
        "generate tinny",
        "generate .",
        "generate small.toml --max-tokens 0",
        "generate small.toml --max-tokens many",
        "generate small.toml --temperature -1",
        "generate small.toml --temperature nan",
        "generate small.toml --top-k 0",
        "generate small.toml --sampling-seed -1",
        "generate small.toml --checkpoint first",
        "generate small.toml --promt x",
        "generate small.toml --prompt --seed 3",
    ]
    compare("cli/generate_wrong", transcript(lines))


def test_a_run_that_has_not_been_trained(cli: CommandLine) -> None:
    text = cli.refused("generate small.toml --prompt x --with 'smoke(steps=3)' --seed 3")
    assert "  setpoint train small.toml --with 'smoke(steps=3)' --seed 3\n" in text


def test_prompts_that_are_not_text(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert "standard input is not UTF-8" in cli.refused("generate small.toml --prompt -")
    assert "--prompt is not UTF-8" in cli.refused("generate small.toml --prompt caf\udce9")
