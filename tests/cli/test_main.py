"""Help, exit status, interrupts and output of all commands."""

import io
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from bdb import BdbQuit
from pathlib import Path

import pytest

import setpoint
from setpoint.cli.main import COMMANDS, command_of, guarded, joined, main
from setpoint.cli.output import styled
from setpoint.config import SetpointError, compose, fingerprint
from setpoint.train.config import Job

from ..model.pretrained.ours import directory
from ..support.snapshots import compare
from .conftest import CommandLine
from .test_checkpoint import make
from .test_diff import record


def test_help_shows_the_overview(cli: CommandLine) -> None:
    text = cli.ok("--help")
    compare("cli/overview", text)
    assert text == cli.ok("-h") == cli.ok("help")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_manual_with_examples(cli: CommandLine, command: str) -> None:
    text = cli.ok(f"{command} --help")
    compare(f"cli/help_{command.replace(' ', '_')}", text)
    assert "Examples\n" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert text == cli.ok(f"{command} -h") == cli.ok(f"help {command}")
    assert text == cli.ok(f"{command} nonsense --whatever 3 --help")


def test_commands_of_two_words(cli: CommandLine) -> None:
    text = cli.ok("tokenizer --help")
    compare("cli/help_tokenizer", text)
    assert text == cli.ok("help tokenizer") == cli("tokenizer").err
    assert cli("tokenizer").status == 2
    cli.refused("tokenizer trian tiny")


def test_without_a_command_the_overview_is_an_error(cli: CommandLine) -> None:
    answer = cli("")
    assert (answer.status, answer.out) == (2, "")
    assert "Commands\n" in answer.err


def test_version_is_printed(cli: CommandLine) -> None:
    assert cli.ok("--version") == cli.ok("-V") == f"setpoint {setpoint.__version__}\n"


def test_mistyped_commands_are_answered_with_the_nearest(cli: CommandLine) -> None:
    lines = ["tran tiny", "--hlep", "help tain", "Check tiny", "chat runs/a", "''", "data ls"]
    for line in lines:
        cli.refused(line)


def test_examples_of_the_manuals_parse(cli: CommandLine) -> None:
    for name in COMMANDS:
        command = command_of(name)
        for line, _ in command.examples:
            words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"'))
            words = words[: words.index("|")] if "|" in words else words
            words = words[: words.index(">")] if ">" in words else words
            name_of, *rest = joined(words[1:])
            assert (words[0], name_of) == ("setpoint", name)
            command.parse(rest)


@pytest.mark.parametrize(
    "line",
    [
        "check small.toml --model.dim x --optimizer.lr -1",
        "check small.toml --batch.global_size 9",
        "why nothing small.toml",
        "fingerprint tinny",
    ],
)
def test_with_json_a_failure_is_json_as_well(cli: CommandLine, line: str) -> None:
    answer = cli(f"{line} --json")
    found = json.loads(answer.out)
    assert answer.status == found["status"] == 2
    assert found["ok"] is False
    assert answer.err == f"error: {found['error']}\n"
    for problem in found["problems"]:
        assert problem["path"] and problem["message"] and problem["origin"]


def test_an_interrupt_has_its_own_status(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("setpoint.cli.check.preflight", interrupt)
    answer = cli("check small.toml")
    assert (answer.status, answer.out, answer.err) == (130, "", "interrupted\n")


INTERRUPTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from setpoint.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["cli.main", "train.config"])
def test_an_interrupt_while_it_starts(module: str) -> None:
    code = INTERRUPTING.format(name=f"setpoint.{module}")
    done = subprocess.run(
        [sys.executable, "-c", code, "check", "tiny"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_bug_keeps_its_traceback(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("setpoint.cli.check.preflight", bug)
    with pytest.raises(ZeroDivisionError):
        main(["check", "small.toml"])


def test_a_reader_that_leaves_early_is_no_error(cli: CommandLine, executable: str) -> None:
    line = f"{executable} list fields | head -1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=cli.folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_is_reported_in_words(cli: CommandLine, executable: str) -> None:
    line = f"{executable} show small.toml > /dev/full"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=cli.folder)
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_an_output_that_cannot_show_a_character(cli: CommandLine, executable: str) -> None:
    done = subprocess.run(
        [executable, "why", "workspace", "small.toml", "--workspace", "läufe"],
        capture_output=True,
        cwd=cli.folder,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"l\xe4ufe" in done.stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _on_a_terminal(words: list[str], folder: Path, **environ: str) -> tuple[int, str]:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        words,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=folder,
        env={**os.environ, "TERM": "xterm", **environ},
    )
    os.close(follower)
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the process has closed its end
            break
        if not part:
            break
        parts.append(part)
    os.close(leader)
    return process.wait(), b"".join(parts).decode()


def test_errors_and_long_texts_on_a_terminal(cli: CommandLine, executable: str) -> None:
    status, text = _on_a_terminal([executable, "check", "tinny"], cli.folder)
    assert status == 2
    assert text.startswith("\033[1;31merror:\033[0m there is no preset")
    words = [executable, "list", "fields", "optimizer"]
    _, text = _on_a_terminal(words, cli.folder, NO_COLOR="1", COLUMNS="60")
    facts = ("; identity", "; runtime")  # a line that is not wrapped
    indented = [line for line in text.splitlines() if line.startswith(" ")]
    help_texts = [line for line in indented if not any(end in line for end in facts)]
    assert max(len(line) for line in help_texts) <= 60
    _, text = _on_a_terminal([executable, "list", "presets"], cli.folder, NO_COLOR="1")
    assert text.startswith("answers  ")


@pytest.mark.parametrize("words", ["list fields", "check tiny --json"])
def test_closed_output_is_no_error(words: str, tmp_path: Path) -> None:
    """After `>&-` Python has no standard output at all."""
    line = f"{shlex.quote(sys.executable)} -m setpoint {words} >&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    done = subprocess.run(["bash", "-c", f"{line} --seed x 2>&-"], cwd=tmp_path, check=False)
    assert done.returncode == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("where", [">/dev/full 2>/dev/full", "2>&1 | true"])
def test_an_error_that_cannot_be_written_has_its_status(where: str, tmp_path: Path) -> None:
    line = f"{shlex.quote(sys.executable)} -m setpoint check nope --json {where}"
    line += "; exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, check=False)
    assert done.returncode == 2


def test_a_command_leaves_whatever_threads_would_do_as_python_exits(tmp_path: Path) -> None:
    """After they have had their time, with its status and all that it has printed."""
    program = (
        "import atexit, sys\n"
        "from threading import Event\n"
        "from setpoint.files.threads import Worker\n"
        "from setpoint.cli.main import main\n"
        "from setpoint.track.trackers import unfinished\n"
        "how = sys.argv.pop()\n"
        "unfinished += ['slow'] * (how == 'tracker')\n"
        "Worker('saves').submit(Event().wait if how == 'disk' else print)\n"
        "atexit.register(print, 'the end')\n"
        "sys.exit(main())\n"
    )
    printed = fingerprint(compose(Job, "tiny").resolve())
    for how, ends in (("tracker", False), ("disk", False), ("done", True)):
        words = [sys.executable, "-c", program, "fingerprint", "tiny", how]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert printed in done.stdout and ("the end" in done.stdout) == ends


@pytest.mark.parametrize(("command", "status"), [("train", 75), ("show", 143)])
def test_a_stop_before_a_command_begins(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str, status: int
) -> None:
    """While modules are imported, where schedulers start again what ends with 75."""
    monkeypatch.setattr(
        "setpoint.cli.main._dispatch", lambda words: os.kill(os.getpid(), signal.SIGTERM)
    )
    answer = cli(f"{command} tiny")
    assert (answer.status, answer.out) == (status, "") and "stopped by SIGTERM" in answer.err


def test_leaving_a_debugger_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def trial_call() -> int:
        try:
            raise BdbQuit
        except Exception as error:
            raise SetpointError("the model cannot be called") from error

    def step() -> int:
        raise BdbQuit

    for command in (trial_call, step):
        assert guarded(command, []) == 130
        assert capsys.readouterr().err == "quit in the debugger\n"


def test_commands_that_read_runs_import_no_torch(cli: CommandLine) -> None:
    """Nor does what they refuse, such as a prompt that is not text."""
    record(cli.folder / "run", "small.toml", "--data.sources=text", "--data.sources.0.paths=gone")
    make(cli.folder / "run" / "checkpoints", [2.5])
    directory(cli.folder / "llama")
    lines = {
        "checkpoint list run": 0, "checkpoint verify run": 0, "runs list .": 0, "import llama": 0,
        "generate run --prompt \udce9": 2, "evaluate run": 2,
    }  # fmt: skip
    program = (
        "import json, sys; from setpoint.cli.main import main\n"
        "found = {line: main(line.split()) for line in json.loads(sys.argv[1])}\n"
        "assert not {'torch', 'numpy', 'transformers', 'huggingface_hub'} & set(sys.modules)\n"
        "print(json.dumps(found))"
    )
    words = [sys.executable, "-c", program, json.dumps([*lines])]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cli.folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == lines


# What terminals and files are given.


@pytest.mark.parametrize(
    ("environ", "coloured"),
    [
        ({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": "0"}, False), ({"TERM": "dumb"}, False),
    ],
)  # fmt: skip
def test_colour_follows_the_terminal_and_variables(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert (styled("x", "1", Terminal()) == "\033[1mx\033[0m") is coloured
    assert styled("x", "1", io.StringIO()) == "x"
