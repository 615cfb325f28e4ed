"""The scripts in the shells that they are for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from setpoint.cli.complete import SCRIPTS

from .conftest import CommandLine


def shell(name: str) -> str:
    """The path of a shell; skips the test where it is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def run(words: list[str], folder: Path, executable: str) -> str:
    """What a command prints, with `setpoint` on the path."""
    path = f"{os.path.dirname(executable)}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "HOME": str(folder)}
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=folder, env=environ, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


SCHEDULES = (
    "none", "constant", "cosine", "linear", "polynomial", "rex", "wsd", "inverse_sqrt",
    "piecewise", "plateau",
)  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_parses(cli: CommandLine, executable: str, name: str) -> None:
    script = cli.file(f"script.{name}", cli.ok(f"completion {name}"))
    run([shell(name), "-n", script], cli.folder, executable)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fing"], ["fingerprint"]),
        (["check", "ti"], ["tiny"]),
        (["check", "tiny", "--optimizer.w"], ["--optimizer.weight_decay"]),
        (["check", "tiny", "--schedule", "=", "co"], ["constant", "cosine"]),
        (["check", "tiny", "--schedule", "=", "p"], ["polynomial", "piecewise", "plateau"]),
        (["check", "tiny", "--schedule", "="], [*SCHEDULES]),
        (["schedule", "tiny", "--pl"], ["--plot"]),
        (["check", "tiny", "--with", "sm"], ["smoke"]),
        (["check", "a"], ["answers", "a\\ file.toml"]),
        (["check", "nonsense"], []),
    ],
)
def test_bash(cli: CommandLine, executable: str, words: list[str], expected: list[str]) -> None:
    cli.file("script", cli.ok("completion bash"))
    cli.file("a file.toml", "")
    # `compopt` only works while readline completes.
    program = """
        source ./script
        compopt() { :; }
        COMP_WORDS=(setpoint "$@")
        COMP_CWORD=$#
        _setpoint
        for word in "${COMPREPLY[@]}"; do echo "$word"; done
    """
    out = run([shell("bash"), "-c", program, "bash", *words], cli.folder, executable)
    assert out.splitlines() == expected


def test_bash_asks_for_no_space_after_an_equals_sign(cli: CommandLine, executable: str) -> None:
    cli.file("script", cli.ok("completion bash"))
    program = """
        source ./script
        compopt() { echo "compopt $*"; }
        COMP_WORDS=(setpoint check tiny optimizer.w)
        COMP_CWORD=3
        _setpoint
        echo "${COMPREPLY[@]}"
        complete -p setpoint
    """
    out = run([shell("bash"), "-c", program], cli.folder, executable)
    assert out.splitlines() == [
        "compopt -o nospace",
        "optimizer.weight_decay=",
        "complete -o bashdefault -o default -F _setpoint setpoint",
    ]


def test_fish(cli: CommandLine, executable: str) -> None:
    program = """
        setpoint completion fish | source
        complete -C 'setpoint check tiny --schedule co'
        complete -C 'setpoint fing'
        complete -C 'setpoint check tiny --optimizer.w'
    """
    out = run([shell("fish"), "--no-config", "-c", program], cli.folder, executable)
    assert out.splitlines() == ["constant", "cosine", "fingerprint", "--optimizer.weight_decay"]


def test_zsh(cli: CommandLine, executable: str) -> None:
    program = """
        autoload -Uz compinit && compinit -u -d dump
        eval "$(setpoint completion zsh)"
        [[ ${_comps[setpoint]} == _setpoint ]] || exit 3
        compadd() { print -r -- compadd "$@"; }
        _files() { print files; }
        words=(setpoint check tiny optimizer.w) CURRENT=4
        _setpoint
        words=(setpoint check tiny --schedule co) CURRENT=5
        _setpoint
        words=(setpoint check tiny nonsense) CURRENT=4
        _setpoint
    """
    out = run([shell("zsh"), "-f", "-c", program], cli.folder, executable)
    assert out.splitlines() == [
        "compadd -S  -- optimizer.weight_decay=",
        "files",
        "compadd -- constant cosine",
        "files",
        "files",
    ]
