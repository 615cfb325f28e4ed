"""Every kind of wrong value, by each way in: file, flag and environment."""

import pytest

from .conftest import CommandLine


def test_unknown_names_are_answered_with_the_nearest(cli: CommandLine) -> None:
    lines = [
        "train tinny", "train ''", "train no/such/run", "train nosuch.toml", "train smal.toml",
        "train small.txt", "check small.toml --with smok",
        "check small.toml --with 'smoke(step=3)'", "check small.toml --with 'smoke(steps=x)'",
        "check small.toml --with 'smoke(steps=3'", "check small.toml --with 'smoke(3)'",
        "check small.toml --with ''", "check small.toml --file nosuch.yaml",
        "check small.toml --optimizer adam", "check small.toml --optimizer.type adam",
        "check small.toml --schedule linaer", "check small.toml --data.sources.0 txt",
        "check small.toml --data.sources.0.type txt", "check small.toml --precision fp8",
        "check zzz_absent:job", "check own:smal", "check own:not_a_job", "check own:", "check :",
    ]  # fmt: skip
    for line in lines:
        cli.refused(line)


def test_values_that_contradict_are_named_together(cli: CommandLine) -> None:
    cli.file("sum.toml", "[batch]\nglobal_size = 24\nmicro_size = 16\naccumulation = 1\n")
    lines = [
        "check small.toml --batch.global_size 9",
        "check small.toml --batch.global_size 100 --batch.accumulation 3",
        "check small.toml --world-size 1024",
        "check small.toml --batch.micro_size 4 --batch.accumulation 3",
        "check small.toml --file sum.toml",
        "check small.toml --model.heads 3",
        "check small.toml --model.kv_heads 2 --model.heads 1",
        "check small.toml --model.max_sequence_length 16",
        "check small.toml --precision.compute fp16",
        "check small.toml --data.sources.0.type text --data.sources.0.paths nothing/*.txt",
        "check small.toml --data.sources '[{type = random, name = a}, {type = random, name = a}]'",
    ]
    for line in lines:
        cli.refused(line)


def test_very_long_and_hostile_values_stay_readable(cli: CommandLine) -> None:
    for line in (
        f"check small.toml --model.dim {'9' * 5000}x",
        f"check small.toml --{'a' * 5000} 1",
        f"check {'a' * 5000}",
        f"check small.toml --with {'a' * 5000}",
        "check small.toml --optimizer.lr '\033[2J\033[31m'",
        "check small.toml --\033[2J.x 1",
        "check '\033[2J'",
        "check small.toml --\u202egnp.exe 1",
    ):
        text = cli(line).err
        assert text.startswith("error: ") and "\033" not in text and "\u202e" not in text
        assert max(len(part) for part in text.splitlines()) < 5500


def test_a_reference_that_leads_to_no_such_section(cli: CommandLine) -> None:
    for line in (
        "check small.toml --data='${model}'",
        "check small.toml --parallel='${model}' --world-size 2",
        "train small.toml --parallel='${model}' --nproc 2",
        "sweep small.toml --parallel='${model}' --seed 1,2 --dry-run",
        "sweep small.toml --name='${model}' --seed 1,2 --dry-run",
    ):
        cli.refused(line)


@pytest.mark.parametrize(
    "lines",
    [
        '[[data.sources]]\ntype = "text"\npaths = "a.txt"',
        '[[data.sources]]\ntype = "text"\npath = "a.txt"',
        '[[data.sources]]\ntype = "jsonl"',
        '[model]\ntype = "llama"',
        'checkpoint.resume = "runs/x"',
        "model.max_sequence_length = 64",
        'model.pretrained = "llama"',
    ],
)
def test_plausible_mistakes_in_a_file(cli: CommandLine, lines: str) -> None:
    cli.file("mistake.toml", f'extends = "tiny"\n{lines}\n')
    cli.refused("check mistake.toml")


def test_a_similar_file_is_named(cli: CommandLine) -> None:
    cli.file("texts/notes.txt", "text")
    paths = "check tiny --data.sources text --data.sources.0.paths"
    cli.refused(f"{paths} text")
    cli.refused(f"{paths} texts/note.txt")
    cli.refused("check small.tml")
    cli.refused("check ./small")
