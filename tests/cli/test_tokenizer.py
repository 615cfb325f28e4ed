"""`setpoint tokenizer train`: a folder that a job uses, or nothing."""

from __future__ import annotations

import json

import pytest

from .conftest import CommandLine

TEXT = "tiny --data.sources text --data.sources.0.paths text.txt"


@pytest.fixture
def text(cli: CommandLine) -> CommandLine:
    cli.file("text.txt", "one fish two fish red fish blue fish\n" * 50)
    return cli


def test_a_tokenizer_is_trained_and_used(text: CommandLine) -> None:
    said = text.ok(f"tokenizer train {TEXT} --vocab-size 280 -o made")
    assert "made: " in said and "--tokenizer huggingface --tokenizer.path made" in said
    used = "--tokenizer huggingface --tokenizer.path made"
    assert "ok" in text.ok(f"check {TEXT} {used}")
    refused = text.refused(f"check {TEXT} {used} --model.vocab_size 270")
    assert "model.vocab_size = 270" in refused
    facts = json.loads(text.ok(f"tokenizer train {TEXT} --vocab-size 260 --output other --json"))
    assert facts["vocab_size"] == 260 and facts["documents"] == 1


def test_what_is_refused(text: CommandLine) -> None:
    train = f"tokenizer train {TEXT}"
    assert "--vocab-size is missing" in text.refused(f"{train} -o made")
    assert "--output is missing" in text.refused(f"{train} --vocab-size 300")
    assert "Did you mean chatml?" in text.refused(
        f"{train} --vocab-size 300 -o made --template chatlm"
    )
    gone = "tokenizer train tiny --data.sources text --data.sources.0.paths gone.txt"
    assert "'gone.txt' does not exist" in text.refused(f"{gone} --vocab-size 300 -o made")
    assert "256 bytes" in text.refused(f"{train} --vocab-size 3 -o made")
    assert not (text.folder / "made").exists()
    text.file("made/notes.txt", "mine")
    assert "already exists" in text.refused(f"{train} --vocab-size 300 -o made")
    assert [each.name for each in (text.folder / "made").iterdir()] == ["notes.txt"]
