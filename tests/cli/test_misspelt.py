"""Misspelt options, and words that belong elsewhere."""

import pytest

from .conftest import CommandLine


def test_misspelt_options_are_answered_with_the_nearest(cli: CommandLine) -> None:
    lines = [
        "check small.toml --jsn", "check small.toml --wrld-size 4",
        "check small.toml --world_sizes=4", "check small.toml --wiht smoke",
        "train small.toml --hlep", "train small.toml --json", "check small.toml --verbose",
        "check small.toml --no-model.tie_embeddings --no-colour", "list --foo",
        "list fields --josn", "check small.toml --nproc 2", "show small.toml --nproc_per_node=2",
        "train small.toml --nproc-per-node 2", "plan small.toml --gpu h100 --gpus 8",
        "plan small.toml --gpus=8", "sweep small.toml --ranks 3",
    ]  # fmt: skip
    for line in lines:
        cli.refused(line)


def test_a_field_is_never_taken_for_an_option(cli: CommandLine) -> None:
    for line in ("--name with --seed 3", "--deterministic", "--no-deterministic", "--seed=3"):
        cli.ok(f"check small.toml {line}")


def test_a_switch_of_other_systems_hides_nothing_else(cli: CommandLine) -> None:
    cli.refused("check small.toml --fp16 --optimizer.lr -1")


@pytest.mark.parametrize(
    "words",
    [
        "--compile", "--duration 2 epochs", "--data.sources.0.paths a.txt b.txt --seed 3", "a.txt",
        "small.toml", "--set model.dim=3", "--",
    ],
)  # fmt: skip
def test_words_that_belong_elsewhere(cli: CommandLine, words: str) -> None:
    cli.file("a.txt", "a line of text\n" * 99)
    cli.file("b.txt", "a line of text\n" * 99)
    cli.refused(f"check tiny {words}")
