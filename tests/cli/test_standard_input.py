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
    for text, line in [
        ("", "check -"),
        (" \n", "check tiny --config-from-stdin"),
        ("a: 1", "check -"),
        (b"\xff\xfe", "check -"),
        ("sead = 1", "check tiny --config-from-stdin"),
        ("seed = 1", "check - --stdin-format ini"),
        ("seed = 1", "check tiny --stdin-format toml"),
        ("seed = 1", "diff tiny --config-from-stdin"),
        ("#" * (1024 * 1024 + 1), "check -"),
        ("seed = 1", "check --config-from-stdin=x"),
        # YAML without a word about it.
        ("# a note\n---\nseed: 3\n", "check -"),
        ("model:\n  dim: 2\n", "check -"),
        ("seed = \n", "check -"),
    ]:
        send(text)
        cli.refused(line)


def test_a_terminal_is_not_waited_for(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    cli.refused("check -")
    monkeypatch.setattr(sys, "stdin", None)
    cli.refused("check -")


def test_words_are_read_from_response_files(cli: CommandLine) -> None:
    cli.file("args.txt", "# faster\n--optimizer.lr 0.5\n--with smoke\n")
    out = cli.ok("why optimizer.lr tiny @args.txt")
    assert "> 0.5    command line --optimizer.lr (args.txt:2)" in out
    cli.refused("check tiny --name @none")
    cli.refused("check tiny name=@none")
