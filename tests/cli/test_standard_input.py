"""A configuration file on standard input, and response files, for every command with a SOURCE."""

import io
import sys
from collections.abc import Callable

import pytest

from .conftest import SMALL, CommandLine


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | bytes], None]:
    """Put a text on standard input."""

    def put(text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return put


Send = Callable[[str | bytes], None]


def test_the_first_sign_says_the_format(cli: CommandLine, send: Send) -> None:
    for text, place in [
        ("[optimizer]\nlr = 0.5\n", "stdin:2:1"),
        ('\ufeff \n{"optimizer": {"lr": 0.5}}', "stdin:2:16"),
    ]:
        send(text)
        out = cli.ok("why optimizer.lr tiny --config-from-stdin")
        assert "optimizer.lr = 0.5" in out and f"> 0.5    {place}" in out
    send("optimizer:\n  lr: 0.5\n")
    assert "stdin:2:3" in cli.ok("why optimizer.lr tiny --config-from-stdin --stdin-format yaml")


def test_it_can_be_the_source(cli: CommandLine, send: Send) -> None:
    cli.file("small.toml", SMALL)
    for line in ("check -", "check --config-from-stdin", "check - --config-from-stdin"):
        send(SMALL)
        assert cli.ok(line).startswith("standard input: ok")
    send('extends = "small.toml"\nseed = 3\n')
    assert "stdin:2:1" in cli("diff small.toml -").out
    send('extends = "small.toml"\n')
    assert cli("diff - -").status == 0  # the same text twice
    send("seed = 3\n")
    assert "stdin:1:1" in cli("diff small.toml small.toml --config-from-stdin").out
    cli.file("over.toml", "seed = 5\n")
    send('extends = "tiny"\nseed = 3\n')
    assert "> 5  over.toml:1:1" in cli.ok("why seed - --file over.toml")


def test_wrong_input_is_refused(cli: CommandLine, send: Send) -> None:
    for text, line, words in [
        ("", "check -", "standard input is empty"),
        (" \n", "check tiny --config-from-stdin", "standard input is empty"),
        ("a: 1", "check -", "stdin:1:2: expected '=' after a key"),
        (b"\xff\xfe", "check -", "stdin:1:1: the file is UTF-16"),
        ("sead = 1", "check tiny --config-from-stdin", "from stdin:1:1"),
        ("seed = 1", "check - --stdin-format ini", "--stdin-format is one of toml, yaml, json"),
        ("seed = 1", "check tiny --stdin-format toml", "no effect without --config-from-stdin"),
        ("seed = 1", "diff tiny --config-from-stdin", "B is missing"),
        ("#" * (1024 * 1024 + 1), "check -", "at most 1 MiB of TOML are read"),
        ("seed = 1", "check --config-from-stdin=x", "is a switch and accepts no value"),
    ]:
        send(text)
        assert words in cli.refused(line), line


def test_a_terminal_is_not_waited_for(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    words = (
        "no configuration on standard input (it is a terminal); send a file there, for example: "
    )
    assert f"{words}setpoint check - < exp.toml" in cli.refused("check -")
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in cli.refused("check -")


def test_words_are_read_from_response_files(cli: CommandLine) -> None:
    cli.file("args.txt", "# faster\n--optimizer.lr 0.5\n--with smoke\n")
    out = cli.ok("why optimizer.lr tiny @args.txt")
    assert "> 0.5    command line --optimizer.lr (args.txt:2)" in out
    assert "there is no such response file" in cli.refused("check tiny --name @none")
    assert "from command line name\n" in cli.refused("check tiny name=@none")


def test_yaml_without_a_word_about_it(cli: CommandLine, send: Send) -> None:
    for text in ("seed: 3\n", "# a note\n---\nseed: 3\n", "model:\n  dim: 2\n"):
        send(text)
        assert "pass --stdin-format yaml" in cli.refused("check -")
    send("seed = \n")
    assert "yaml" not in cli.refused("check -")
