"""The scripts in the shells that they are for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from setpoint.cli.list import KINDS
from setpoint.cli.main import COMMANDS
from setpoint.config.layers.presets import presets

from .conftest import CommandLine
from .test_diff import record


def complete(cli: CommandLine, *words: str) -> list[str]:
    """The candidates at the end of a command line; the last word is the one at the cursor."""
    from setpoint.cli.main import main

    main(["__complete", str(len(words)), *words])
    captured = cli._capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def test_commands_are_completed(cli: CommandLine) -> None:
    assert complete(cli, "") == list(dict.fromkeys(name.split()[0] for name in COMMANDS))
    assert complete(cli, "tokenizer", "") == complete(cli, "help", "tokenizer", "") == ["train"]
    assert "tiny" in complete(cli, "tokenizer", "train", "ti")
    assert complete(cli, "tokenizer", "train", "--templ") == ["--template"]
    assert complete(cli, "tokenizer", "train", "--template", "chat") == ["chatml"]
    assert complete(cli, "ch") == ["check", "checkpoint"]
    assert complete(cli, "help", "tr") == ["train"]
    assert complete(cli, "nonsense", "") == []


def test_sources_are_completed(cli: CommandLine) -> None:
    record(cli.folder / "runs" / "exp" / "small-1234", "small.toml")
    cli.file("other.yaml", "")
    cli.file("notes.txt", "")
    for command in ("train", "check", "show", "fingerprint", "generate", "diff"):
        found = complete(cli, command, "")
        assert set(found) == {*presets, "small.toml", "other.yaml", "runs/exp/small-1234"}
    assert complete(cli, "check", "ti") == ["tiny"]
    assert complete(cli, "check", "--json", "ti") == ["tiny"]
    assert complete(cli, "check", "--with", "smoke", "sm") == ["small.toml"]
    assert complete(cli, "diff", "tiny", "sm") == ["small.toml"]
    assert complete(cli, "check", "runs/e") == ["runs/exp/small-1234"]
    cli.file("runs/exp/sweep.json", "{}")
    assert complete(cli, "compare", "runs/e") == ["runs/exp", "runs/exp/small-1234"]
    assert complete(cli, "check", "runs/e") == ["runs/exp/small-1234"]


def test_fields_are_those_of_the_chosen_variants(cli: CommandLine) -> None:
    fields = complete(cli, "check", "small.toml", "--optimizer.")
    assert "--optimizer.betas" in fields and "--optimizer.momentum" not in fields
    fields = complete(cli, "check", "small.toml", "--optimizer", "muon", "--optimizer.")
    assert "--optimizer.momentum" in fields and "--optimizer.rho" not in fields
    assert complete(cli, "check", "--optimizer.mom")  # without a source any variant


def test_modifiers_files_and_choices(cli: CommandLine) -> None:
    assert set(complete(cli, "train", "tiny", "--with", "")) == {"reproducible", "smoke"}
    assert complete(cli, "train", "tiny", "--with=sm") == ["--with=smoke"]
    assert complete(cli, "train", "tiny", "--file", "") == ["small.toml"]
    assert complete(cli, "show", "tiny", "--format", "y") == ["yaml"]
    assert complete(cli, "generate", "tiny", "--checkpoint", "") == ["best", "latest"]
    assert complete(cli, "check", "tiny", "--world-size", "") == []


def test_values_are_completed(cli: CommandLine) -> None:
    assert complete(cli, "check", "tiny", "--schedule", "co") == ["constant", "cosine"]
    assert complete(cli, "check", "tiny", "--schedule=co")[-1] == "--schedule=cosine"
    assert complete(cli, "check", "tiny", "schedule.type=co")[-1] == "schedule.type=cosine"
    assert "bf16" in complete(cli, "check", "tiny", "--precision.compute", "")
    assert complete(cli, "check", "tiny", "--deterministic", "t") == ["true"]
    assert complete(cli, "check", "tiny", "--seed", "") == []
    assert complete(cli, "check", "tiny", "--no-such", "") == []
    assert complete(cli, "check", "tiny", "--tag.lea") == ["--tag.learning_rate"]
    assert complete(cli, "check", "tiny", "--silence", "horiz") == ["horizon-differs-from-run"]


def test_paths_of_fields_and_kinds_of_lists_are_completed(cli: CommandLine) -> None:
    assert complete(cli, "why", "optimizer.w") == ["optimizer.weight_decay"]
    assert complete(cli, "why", "optimizer.lr", "t") == ["tiny"]
    assert complete(cli, "why", "tiny", "optimizer.w") == ["optimizer.weight_decay"]
    assert complete(cli, "list", "") == list(KINDS)
    assert complete(cli, "list", "fields", "model.head") == ["model.heads", "model.head_dim"]
    assert complete(cli, "completion", "") == ["bash", "zsh", "fish"]


@pytest.mark.parametrize("words", [[], ["x"], ["-1", "check"], ["99", "check", "tiny"]])
def test_nonsense_from_a_shell_is_no_traceback(cli: CommandLine, words: list[str]) -> None:
    from setpoint.cli.main import main

    assert main(["__complete", *words]) in (0, 2)


def test_points_of_a_sweep(cli: CommandLine) -> None:
    assert complete(cli, "sweep", "tiny", "--precision.compute", "bf16,f") == [
        "bf16,fp32",
        "bf16,fp16",
    ]
    assert complete(cli, "sweep", "tiny", "--precision.compute=bf16,fp3") == [
        "--precision.compute=bf16,fp32"
    ]
    assert complete(cli, "sweep", "tiny", "--with", "null,sm") == ["null,smoke"]
    assert complete(cli, "sweep", "small.toml,ti") == ["small.toml,tiny"]
    assert complete(cli, "sweep", "tiny", "--direction", "mi") == ["minimize"]
    assert complete(cli, "compare", "tiny", "sm") == ["small.toml"]


def test_checkpoints_of_a_run_that_is_typed(cli: CommandLine) -> None:
    run = cli.folder / "runs" / "small-1"
    record(run, "small.toml")
    for name in ("step-00000100", "step-00000200.tmp-7"):
        (run / "checkpoints" / name).mkdir(parents=True)
    (run / "checkpoints" / "latest").write_text("step-00000100\n")
    assert complete(cli, "show", "runs/") == ["runs/small-1"]
    assert complete(cli, "show", "runs/small-1/c") == [
        "runs/small-1/checkpoints/latest",
        "runs/small-1/checkpoints/step-00000100",
    ]


# The scripts in the shells that they are for.


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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fing"], ["fingerprint"]),
        (["check", "tiny", "--optimizer.w"], ["--optimizer.weight_decay"]),
        (["check", "tiny", "--schedule", "=", "co"], ["constant", "cosine"]),
        (["check", "a"], ["answers", "a\\ file.toml"]),
        (["check", "tiny", "optimizer.w"], ["compopt -o nospace", "optimizer.weight_decay="]),
        (["check", "nonsense"], []),
    ],
)
def test_bash_completes(
    cli: CommandLine, executable: str, words: list[str], expected: list[str]
) -> None:
    cli.file("script", cli.ok("completion bash"))
    cli.file("a file.toml", "")
    # `compopt` only works while readline completes.
    program = """
        source ./script
        compopt() { echo "compopt $*"; }
        COMP_WORDS=(setpoint "$@")
        COMP_CWORD=$#
        _setpoint
        for word in "${COMPREPLY[@]}"; do echo "$word"; done
    """
    out = run([shell("bash"), "-c", program, "bash", *words], cli.folder, executable)
    assert out.splitlines() == expected


def test_fish_completes(cli: CommandLine, executable: str) -> None:
    program = """
        setpoint completion fish | source
        complete -C 'setpoint check tiny --schedule co'
        complete -C 'setpoint fing'
        complete -C 'setpoint check tiny --optimizer.w'
    """
    out = run([shell("fish"), "--no-config", "-c", program], cli.folder, executable)
    assert out.splitlines() == ["constant", "cosine", "fingerprint", "--optimizer.weight_decay"]


def test_zsh_completes(cli: CommandLine, executable: str) -> None:
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
