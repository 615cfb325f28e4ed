"""Misspelt options, and words that belong elsewhere."""

from collections.abc import Callable

import pytest

from ..support.snapshots import compare
from .conftest import CommandLine


def test_misspelt_options_are_answered_with_the_nearest(
    transcript: Callable[[list[str]], str],
) -> None:
    lines = [
        "check small.toml --jsn", "check small.toml --wrld-size 4",
        "check small.toml --world_sizes=4", "check small.toml --wiht smoke",
        "train small.toml --hlep", "train small.toml --json", "check small.toml --verbose",
        "check small.toml --no-model.tie_embeddings --no-colour", "list --foo",
        "list fields --josn", "check small.toml --nproc 2", "show small.toml --nproc_per_node=2",
        "train small.toml --nproc-per-node 2", "plan small.toml --gpu h100 --gpus 8",
        "plan small.toml --gpus=8", "sweep small.toml --ranks 3",
    ]  # fmt: skip
    compare("cli/misspelt_options", transcript(lines))


def test_a_field_is_never_taken_for_an_option(cli: CommandLine) -> None:
    for line in ("--name with --seed 3", "--deterministic", "--no-deterministic", "--seed=3"):
        cli.ok(f"check small.toml {line}")


def test_a_switch_of_other_systems_hides_nothing_else(cli: CommandLine) -> None:
    text = cli.refused("check small.toml --fp16 --optimizer.lr -1")
    assert "on a GPU: --precision.compute fp16" in text and "optimizer.lr = -1" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--compile", "Enable it with its defaults: --compile '{}'; off with"),
        ("--duration 2 epochs", '--duration "2 epochs"'),
        ("--data.sources.0.paths a.txt b.txt --seed 3", ": --data.sources.0.paths a.txt,b.txt"),
        ("a.txt", "--data.sources '[{type: text, paths: [a.txt]}]'"),
        ("small.toml", "--file small.toml"),
        ("--set model.dim=3", "write --model.dim=3"),
        ("--", "unexpected argument '--'"),
    ],
)
def test_words_that_belong_elsewhere(cli: CommandLine, words: str, said: str) -> None:
    cli.file("a.txt", "a line of text\n" * 99)
    cli.file("b.txt", "a line of text\n" * 99)
    assert said in cli.refused(f"check tiny {words}")
