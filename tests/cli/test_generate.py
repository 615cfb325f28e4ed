"""What `setpoint generate`, `evaluate` and `export` refuse."""

import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from setpoint.cli import infer
from setpoint.config import SetpointError

from ..support.records import remove_field
from .conftest import CommandLine
from .test_diff import record


def test_wrong_settings_of_generation_are_refused(cli: CommandLine) -> None:
    lines = [
        "generate",
        "generate tinny",
        "generate .",
        "generate small.toml --max-tokens 0",
        "generate small.toml --max-tokens many",
        "generate small.toml --temperature -1",
        "generate small.toml --temperature nan",
        "generate small.toml --top-k 0",
        "generate small.toml --top-p 0",
        "generate small.toml --top-p 1.5",
        "generate small.toml --min-p many",
        "generate small.toml --repetition-penalty 0",
        "generate small.toml --temperature 0 --top-k 5",
        "generate small.toml --stop ''",
        "generate small.toml --prompts-file none.txt",
        "generate small.toml --chat --output answers",
        "generate small.toml --prompt x --system y",
        "generate small.toml --prompt x --template chatml",
        "generate small.toml --sampling-seed -1",
        "generate small.toml --sampling-seed 99999999999999999999999",
        "generate small.toml --checkpoint first",
        "generate small.toml --checkpoint ²",
        "generate small.toml --checkpoint 99999999999999999999999",
        "generate small.toml --promt x",
        "generate small.toml --prompt --seed 3",
        "generate small.toml 'Once upon a time'",
        "generate small.toml --weights.path x --generation.top_k 3",
    ]
    for line in lines:
        cli.refused(line)


def test_a_run_that_has_not_been_trained(cli: CommandLine) -> None:
    cli.refused("generate small.toml --prompt x --with 'smoke(steps=3)' --seed 3")


def test_weights_of_a_model_of_the_users_own(cli: CommandLine) -> None:
    """Its module must be imported before its record can be read."""
    (cli.folder / "own_of_a_test.py").write_text("raise RuntimeError('imported')\n")
    answer = cli("export small.toml out --import own_of_a_test")
    assert answer.status == 1 and "--import own_of_a_test" in answer.err
    assert 'own_of_a_test.py", line 1' in answer.err and "imported" in answer.err


def test_prompts_that_are_not_text(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)
    cli.refused("generate small.toml --prompt -")
    cli.refused("generate small.toml --prompt caf\udce9")
    # In the C locale, standard input hands on what is not text.
    monkeypatch.setattr(sys, "stdin", io.StringIO("caf\udce9"))
    cli.refused("generate small.toml --prompt -")


@pytest.mark.parametrize("words", ["", "--prompt -"])
def test_what_is_piped_is_the_prompt(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    prompts: list[tuple[str, ...]] = []

    def job_with_weights(_: object, tasks: dict[str, Any]) -> None:
        prompts.append(tasks["generation"].prompts)
        raise SetpointError("enough")

    monkeypatch.setattr(infer, "job_with_weights", job_with_weights)
    cli.file("prompt.txt", "two\nlines")
    with open(cli.folder / "prompt.txt") as file:
        monkeypatch.setattr(sys, "stdin", file)
        cli.refused(f"generate small.toml {words}")
    assert prompts == [("two\nlines",)]


def test_a_pipe_without_a_prompt_yet_is_said_to_be_read(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infer, "WAIT", 0.0)
    end, start = os.pipe()

    def write(notes: Sequence[str]) -> None:
        told.extend(notes)
        os.write(start, b"late")
        os.close(start)

    told: list[str] = []
    monkeypatch.setattr(infer, "print_notes", write)
    with open(end) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        cli.refused("generate small.toml")
    assert told == ["reading the prompt from standard input, to its end"]


def test_another_model_than_the_run_has(cli: CommandLine) -> None:
    run = record(cli.folder / "run", "small.toml")
    cli.refused(f"generate {run} --model.rope_base 5 --seed 3")
    # What is not part of what is learned may differ: it gets as far as the missing checkpoint.
    cli.refused(f"generate {run} --parallel.device cpu")


def test_a_field_that_the_record_lacks_is_no_request(cli: CommandLine) -> None:
    """As in a run of a version without the field."""
    run = record(cli.folder / "run", "small.toml")
    remove_field(cli.folder / "run", "model.rope_base")
    cli.refused(f"generate {run}")
    cli.refused(f"generate {run} --model.rope_base 5")


def test_a_preset_or_file_means_the_run_that_train_would_make(cli: CommandLine) -> None:
    """A run that went on under --accept keeps the directory of the configuration it began with."""
    folder = cli.ok("check small.toml").partition("run directory")[2].split()[0]
    record(cli.folder / folder, "small.toml", "--optimizer.lr=0.5")
    cli.refused("generate small.toml")
    # The configuration that was accepted finds it.
    cli.refused("generate small.toml --optimizer.lr 0.5")
    assert f"run directory    {folder}\n" in cli.ok("check small.toml --optimizer.lr 0.5")
    # A longer one finds it, too, and is refused what it was not trained with.
    cli.refused("generate small.toml --optimizer.lr 0.5 --duration 99")


def test_overrides_of_what_is_over(cli: CommandLine) -> None:
    record(cli.folder / "run", "small.toml", "--checkpoint.keep", "9")
    others = "--tracking.progress lines --evaluation null"
    lines = [
        "evaluate run --evaluation.sequences 4",
        "evaluate run --evaluation '{sequences: 4, accuracy: true}' --checkpoint.keep 3",
        f"generate run {others} --model.attention_backend eager",
        f"export run out {others}",
        "evaluate run --evaluation.sequences 4 --model.dim 64",
    ]
    for line in lines:
        cli.refused(line)
    # A preset or file with the same overrides is the run that they made.
    cli.refused("evaluate small.toml --evaluation.sequences 4")


def test_the_seed_of_sampling_is_another_option(cli: CommandLine) -> None:
    run = record(cli.folder / "run", "small.toml")
    other = cli.ok("check small.toml").partition("run directory")[2].split()[0]
    record(cli.folder / other, "small.toml")
    cli.refused(f"generate {run} --prompt a --seed 3")
    cli.refused("generate small.toml --prompt a --seed 3")
    cli.refused(f"evaluate {run} --seed 3")
