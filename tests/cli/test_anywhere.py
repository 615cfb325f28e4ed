"""Trained weights are used in another folder, and without the files that they were trained with."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ..data.tokenizers_here import byte_level
from ..infer.small import small_model
from .conftest import CommandLine

JOB = """\
extends = "small.toml"
name = "words"
duration = "3 steps"

[[data.sources]]
type = "text"
paths = ["notes/*.md"]
"""
TOKENIZER = """
[tokenizer]
type = "huggingface"
path = "tokens"
"""
SPECIAL = {"bos_token_id": 1, "eos_token_id": [0, 7], "pad_token_id": 9}


def train(cli: CommandLine, text: str, kept: Path | None = None) -> str:
    """Train on files below the working folder, then take these away, perhaps to another folder.

    Returns:
        the run directory.
    """
    for number in range(20):
        cli.file(f"notes/{number}.md", f"the note number {number}; " * 20)
    cli.file("words.toml", text)
    assert cli("train words.toml --tracking.progress none").status == 0
    if kept is None:
        shutil.rmtree(cli.folder / "notes")
    else:
        (cli.folder / "notes").rename(kept)
    (found,) = (cli.folder / "runs").iterdir()
    return str(found)


def used(cli: CommandLine, source: str, folder: str) -> dict[str, Any]:
    """What the commands make of weights."""
    written = cli.ok(f"generate {source} --prompt 'the ' --max-tokens 4 --temperature 0")
    scores = json.loads(cli.ok(f"evaluate {source} --text other.txt --json"))["evaluation"]
    answer = cli(f"export {source} {folder}")
    assert answer.status == 0 and (not answer.err or "has no tokenizer files" in answer.err)
    names = sorted(path.name for path in (cli.folder / folder).iterdir())
    return {"written": written, "scores": scores, "names": names}


def test_without_the_data_and_the_tokenizer(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte_level(cli.folder / "tokens")
    (cli.folder / "tokens" / "chat_template.jinja").write_text("{{ messages }}")
    run = train(cli, JOB + TOKENIZER)
    cli.file("other.txt", "the note number 21; " * 20)
    expected = used(cli, run, "exported")
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= {
        *expected["names"]
    }
    checkpoint = shutil.copytree(f"{run}/checkpoints/step-00000003", cli.folder / "alone")
    shutil.rmtree(cli.folder / "tokens")
    assert used(cli, "alone", "exported-again") == expected
    cli.file("generate.toml", '[weights]\npath = "alone"\n[generation]\nprompts = ["the "]\n')
    assert "ok" in cli.ok("check generate.toml")
    elsewhere = cli.folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert cli.ok(f"generate {checkpoint} --prompt 'the ' --max-tokens 4 --temperature 0")
    # The held-out text is gone as well.
    for command in (f"evaluate {run}", f"evaluate {checkpoint} --side train"):
        cli.refused(command)
    # What is wrong with a file that the checkpoint keeps is said of that.
    file = cli.folder / "alone" / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:-1] + b" ")
    assert "tokenizer.json has the BLAKE3" in cli(f"generate {checkpoint} --prompt a").err


def pretrained(folder: Path) -> Path:
    """A model of Hugging Face with special tokens."""
    from setpoint.model.pretrained.save_pretrained import save_pretrained

    directory = byte_level(save_pretrained(small_model(vocab_size=300), folder))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **SPECIAL}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7]}))
    return directory


THEIRS = """\
extends = "small.toml"
name = "words"
duration = "3 steps"
schedule = {type = "constant"}
model = {type = "huggingface", config = "theirs", pretrained = "theirs"}
tokenizer = {type = "huggingface", path = "theirs"}
data.sources = [{type = "text", paths = ["notes/*.md"]}]
"""
OURS = """\
extends = ["start.toml", "small.toml"]
name = "words"
duration = "3 steps"
schedule = {type = "constant"}
model = {dim = 32, layers = 2, heads = 4}
data.sources = [{type = "text", paths = ["notes/*.md"]}]
"""


@pytest.mark.parametrize("text", [OURS, THEIRS], ids=["ours", "theirs"])
def test_export_keeps_special_tokens(cli: CommandLine, text: str) -> None:
    """Of our transformer that started from such a model, and of transformers' own."""
    start = pretrained(cli.folder / "theirs")
    assert cli("import theirs --output start.toml").status == 0
    small = (cli.folder / "small.toml").read_text()
    cli.file(
        "small.toml", small.replace(small[small.index("[model]") : small.index("[batch]")], "")
    )
    notes = cli.folder / "kept"
    run = train(cli, text, notes)
    # A session more keeps what the first one began with.
    (start / "generation_config.json").unlink()
    notes.rename(cli.folder / "notes")
    more = cli(f"train {run} --duration '5 steps' --tracking.progress none")
    assert more.status == 0, more
    shutil.rmtree(start)
    cli.ok(f"export {run} exported --checkpoint 5")
    config = json.loads((cli.folder / "exported" / "config.json").read_text())
    assert {key: config.get(key) for key in SPECIAL} == SPECIAL
    settings = json.loads((cli.folder / "exported" / "generation_config.json").read_text())
    assert settings["eos_token_id"] == [0, 7]
