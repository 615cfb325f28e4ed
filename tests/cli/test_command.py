"""How commands read their words."""

import shlex

import pytest

from setpoint.cli.options import Command, Option

from .conftest import CommandLine

COMMAND = Command(
    "cook DISH [OVERRIDES]",
    Option("--salt GRAMS", "How much.", type=int),
    Option("--herb NAME", "Which.", True),
)


def test_options_and_overrides_are_told_apart() -> None:
    words = shlex.split("--salt 3 soup --herb=dill --a.b 1 --herb mint c=2 d --salty")
    parsed = COMMAND.parse(words)
    assert parsed.positional == ["soup"]
    assert parsed.overrides == ["--a.b=1", "c=2", "d", "--salty"]
    assert parsed.options == {"--salt": ["3"], "--herb": ["dill", "mint"]}
    assert parsed.integer("--salt") == 3
    assert parsed.value("--herb") == "mint"
    assert parsed.integer("--pepper") is None


def test_underscores_are_hyphens_in_options(cli: CommandLine) -> None:
    line = "check small.toml --batch.micro_size 1"
    assert cli.ok(f"{line} --world_size 8") == cli.ok(f"{line} --world-size=8")


def test_arguments_that_do_not_fit(cli: CommandLine) -> None:
    lines = [
        "train", "check --seed small.toml", "diff small.toml", "diff", "why", "completion",
        "check small.toml tiny", "check small.toml --seed 3 tiny", "list presets zebra extra",
        "list fields model zebra", "check small.toml --with",
        "check small.toml --with --file x.toml", "check small.toml --json=yes",
        "check small.toml --world-size 2 --world-size 3", "check small.toml --world-size many",
        "check small.toml --world-size 0", "show small.toml --format xml", "completion csh",
        "completion bsh",
    ]  # fmt: skip
    for line in lines:
        cli.refused(line)


@pytest.mark.parametrize(
    "line",
    [
        "show --seed 3 small.toml --deterministic",
        "show --deterministic small.toml --seed 3",
        "show --deterministic true small.toml seed=3",
        "show seed=3 --deterministic --json small.toml",
    ],
)
def test_a_source_stands_anywhere_among_the_flags(cli: CommandLine, line: str) -> None:
    line = line.replace("show", "fingerprint")
    assert cli.ok(line) == cli.ok(
        "fingerprint small.toml --seed 3 --deterministic" + (" --json" if "--json" in line else "")
    )


def test_a_word_behind_a_switch_may_be_a_preset(cli: CommandLine) -> None:
    assert cli.ok("fingerprint --deterministic tiny") == cli.ok("fingerprint tiny --deterministic")
    cli.refused("check --deterministic tyny")
    cli.refused("check --no-deterministic on tiny")
