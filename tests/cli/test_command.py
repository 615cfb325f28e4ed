import shlex
import sys
from collections.abc import Callable

import pytest

from setpoint.cli.options import Arguments, Command, Option
from setpoint.config import SetpointError

from ..support.snapshots import compare
from .conftest import CommandLine

COMMAND = Command(
    "cook DISH [OVERRIDES]",
    Option("--salt GRAMS", "How much.", type=int),
    Option("--herb NAME", "Which.", True),
    Option("--heat LEVEL", "How hot.", type=float, excludes="--raw"),
    Option("--raw", "Leave it raw."),
    Option("--oven top|base", "Which part.", requires="--heat"),
    Option("--minutes all|N", "How long."),
)


@COMMAND
def cook(arguments: Arguments) -> int:
    """Cook.

    DISH is what there is.

    Examples:
        setpoint cook soup  soup
        setpoint cook 'pea soup' --salt 3   another one
    """
    return len(arguments.positional)


def test_the_docstring_is_the_manual() -> None:
    assert COMMAND.title == "setpoint cook"
    assert COMMAND.description.startswith("Cook.\n\nDISH is what there is.\n\nSOURCE is ")
    assert COMMAND.examples == [
        ("setpoint cook soup", "soup"),
        ("setpoint cook 'pea soup' --salt 3", "another one"),
    ]


@pytest.mark.parametrize(
    ("usage", "counts"),
    [("a", (0, 0)), ("a b X [Y] [OVERRIDES]", (1, 2)), ("a X...", (1, sys.maxsize))],
)
def test_the_usage_says_how_many_arguments_there_are(usage: str, counts: tuple[int, int]) -> None:
    command = Command(usage)
    assert (command.at_least, command.at_most) == counts


def test_words_or_a_number() -> None:
    assert COMMAND.parse(["soup", "--minutes", "all"]).value("--minutes") == "all"
    assert COMMAND.parse(["soup", "--minutes", "12"]).integer("--minutes") == 12
    with pytest.raises(SetpointError, match="--minutes is all or a number; got 'al'"):
        COMMAND.parse(["soup", "--minutes", "al"])


def test_options_and_overrides_are_told_apart() -> None:
    words = shlex.split("--salt 3 soup --herb=dill --a.b 1 --herb mint c=2 d --salty")
    parsed = COMMAND.parse(words)
    assert parsed.positional == ["soup"]
    assert parsed.overrides == ["--a.b=1", "c=2", "d", "--salty"]
    assert parsed.options == {"--salt": ["3"], "--herb": ["dill", "mint"]}
    assert parsed.integer("--salt") == 3
    assert parsed.value("--herb") == "mint"
    assert parsed.integer("--pepper") is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--salt 1.5", "--salt needs an int, got '1.5'"),
        ("--salt -4", "--salt must be at least 1, got -4"),
        (f"--salt {2**63}", f"--salt must be at most {2**63 - 1}, got {2**63}"),
        ("--heat nan", "--heat "),
        ("--heat -1", "--heat must be at least 0"),
        ("--heat x", "--heat "),
    ],
)
def test_numbers_out_of_range(words: str, message: str) -> None:
    with pytest.raises(SetpointError) as caught:
        COMMAND.parse(["soup", *words.split()])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--oven top", "--oven needs --heat LEVEL"),
        ("--heat 2 --raw", "--heat and --raw contradict each other; give one"),
        ("--heat 2 --oven tap", "--oven is one of top, base; got 'tap'. Did you mean top?"),
    ],
)
def test_options_check_themselves(words: str, message: str) -> None:
    with pytest.raises(SetpointError) as caught:
        COMMAND.parse(["soup", *words.split()])
    assert str(caught.value) == message
    assert COMMAND.parse(["soup", "--heat", "2.5", "--oven", "top"]).number("--heat") == 2.5


def test_underscores_are_hyphens_in_options(cli: CommandLine) -> None:
    line = "check small.toml --batch.micro_size 1"
    assert cli.ok(f"{line} --world_size 8") == cli.ok(f"{line} --world-size=8")


def test_arguments_that_do_not_fit(transcript: Callable[[list[str]], str]) -> None:
    lines = [
        "train",
        "check --seed small.toml",
        "diff small.toml",
        "diff",
        "why",
        "completion",
        "check small.toml tiny",
        "check small.toml --seed 3 tiny",
        "list presets zebra extra",
        "list fields model zebra",
        "check small.toml --with",
        "check small.toml --with --file x.toml",
        "check small.toml --json=yes",
        "check small.toml --world-size 2 --world-size 3",
        "check small.toml --world-size many",
        "check small.toml --world-size 0",
        "show small.toml --format xml",
        "completion csh",
        "completion bsh",
    ]
    compare("cli/arguments", transcript(lines))


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
    said = cli.refused("check --deterministic tyny")
    assert "--deterministic takes true or false; 'tyny' is neither, and no preset" in said
    assert "accepts no value, got 'on'" in cli.refused("check --no-deterministic on tiny")


def test_a_source_that_is_the_value_of_a_flag_is_said_to_be_one(cli: CommandLine) -> None:
    said = cli.refused("check --seed small.toml")
    assert "SOURCE is missing" in said
    assert "small.toml is the value of --seed here; write --seed=VALUE" in said
    assert "tiny is the value of --batch.micro_size" in cli.refused("check --batch.micro_size tiny")
    assert "is the value of" not in cli.refused("check --seed 3")
