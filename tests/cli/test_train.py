"""What `setpoint train` refuses before it writes anything; training itself is tested elsewhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from setpoint.config import compose
from setpoint.sweep.sweep_record import write_point
from setpoint.train.config import Job
from setpoint.train.run_name import run_directory_of

from .conftest import SMALL, CommandLine
from .test_diff import record


def run_directory(cli: CommandLine, overrides: str = "") -> str:
    """Where the run of `small.toml` would lie."""
    text = cli.ok(f"check small.toml {overrides}")
    return next(line.split()[-1] for line in text.splitlines() if "run directory" in line)


@pytest.mark.parametrize(
    "line",
    [
        "tokenizer train small.toml --vocab-size 260 --output file/tokens",
        "data prepare small.toml --output file/data",
        "schema --output file/schema.json",
        "check small.toml --plan --gpu h100 --timeline /proc/t.html",
    ],
)
def test_what_cannot_be_written_is_no_fault_of_the_configuration(
    cli: CommandLine, line: str
) -> None:
    cli.file("file", "")
    cli.refused(line, status=1)


@pytest.mark.parametrize("command", ["check", "train", "sweep"])
def test_a_file_is_no_workspace(cli: CommandLine, command: str) -> None:
    cli.file("file", "")
    more = " --seed 1,2" * (command == "sweep")
    cli.refused(f"{command} small.toml --workspace file{more}")


def test_empty_data_and_data_that_is_not_text(cli: CommandLine) -> None:
    cli.file("empty.txt", "")
    cli.file("one.txt", "a single document")
    cli.file("latin.txt", b"plain text, then caf\xe9")
    cli.file("good.txt", "hello")
    line = "train small.toml --data.sources.0 text --data.sources.0.paths"
    for names in ("empty.txt", "one.txt", "latin.txt,good.txt"):
        cli.refused(f"{line} {names}")


def test_more_ranks_than_this_version_trains_with(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.refused("train small.toml --parallel.world_size 2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    cli.refused("train small.toml")
    monkeypatch.setenv("WORLD_SIZE", "many")
    cli.refused("train small.toml --model.dim x")


def test_a_point_of_a_sweep_over_the_duration_is_a_run_of_its_own(cli: CommandLine) -> None:
    """Beside it lie points that differ in the duration alone, which are not a run to continue."""
    longer = "--duration '99 steps'"
    folder = cli.ok("check small.toml").partition("run directory")[2].split()[0]
    record(cli.folder / folder, "small.toml")
    cli.refused(f"train small.toml {longer} --dry-run")
    job = compose(Job, "small.toml", flags=["--duration", "99 steps"]).resolve()
    write_point(cli.folder / "point", "duration=99", job, run_directory_of(job))
    assert "would start at step 0" in cli.ok("train point --dry-run")


@pytest.mark.parametrize("rank", ["abc", "5"])
def test_a_rank_that_is_none_is_refused_at_once(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    # Before anything else is looked at.
    cli.refused("train none.toml")
    cli.refused("check small.toml")


def test_a_run_whose_identity_differs(cli: CommandLine) -> None:
    run = record(cli.folder / "run", "small.toml", "--optimizer.lr=0.5")
    cli.refused(f"train {run} --optimizer.lr 0.6 --evaluation.every '5 steps'")


def test_commands_to_copy_name_the_variables_that_gave_values(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(cli.folder / "run", "small.toml", "--optimizer.lr=0.5")
    monkeypatch.setenv("SETPOINT__OPTIMIZER__LR", "0.25")
    cli.refused(f"train {run}")
    cli.refused("evaluate small.toml")


@pytest.mark.parametrize("line", ["train small.toml", "sweep small.toml --seed 1,2"])
def test_without_torch_the_answer_says_what_to_install(cli: CommandLine, line: str) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; from setpoint.cli.main import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", program, *line.split()]
    done = subprocess.run(words, text=True, capture_output=True)
    assert done.returncode == 2, done.stderr
    assert "install PyTorch" in done.stderr and "Traceback" not in done.stderr
    assert not (cli.folder / "runs").exists()


def test_from_training_to_text(cli: CommandLine) -> None:
    text = cli.ok("train small.toml")
    assert "\033" not in text
    assert "finished" in text and "held-out loss" in text
    run = run_directory(cli)
    assert cli.ok(f"diff small.toml {run}").startswith("no differences")
    assert cli.ok(f"fingerprint {run}") == cli.ok("fingerprint small.toml")
    answer = cli(f"diff small.toml {run} --optimizer.lr 3")
    assert (answer.status, answer.out.splitlines()[0]) == (1, "optimizer.lr  (identity)")
    for source in (run, "small.toml"):
        assert f"{run} is finished" in cli.ok(f"train {source}")
        line = f"generate {source} --prompt 'ab' --max-tokens 4 --temperature 0"
        assert cli.ok(line).startswith("ab")
    cli.refused(f"generate {run} --checkpoint 999")
    cli.refused(f"train {run} --optimizer.lr 3")


def test_accepting_needs_the_record_of_a_run(cli: CommandLine) -> None:
    for source in ("small.toml", "tiny", "own:small"):
        cli.refused(f"train {source} --optimizer.lr 3 --accept optimizer.lr")


def test_held_out_text_of_its_own_and_none(cli: CommandLine) -> None:
    cli.file("val.txt", "a line of text\n" * 20)
    validation = '[[data.validation]]\ntype = "text"\npaths = ["val.txt"]\n'
    cli.file("own.toml", SMALL.replace("held_out = 0.2\n", "") + validation)
    quiet = "--tracking.progress none --duration '2 steps'"
    shown = cli.ok(f"train own.toml --name own {quiet}")
    assert "held-out loss" in shown
    (run,) = (cli.folder / "runs").glob("own-*")
    found = json.loads((run / "environment.json").read_text())["data"]["held_out"]
    assert [name for name, *_ in found["files"]] == ["text/val.txt"]
    assert json.loads(cli.ok(f"evaluate {run} --json"))["evaluation"]["held_out"]["bytes"] == 300
    cli.file("val.txt", "another line\n" * 20)
    assert "documents of held_out" in cli(f"train {run}").err

    none = f"train small.toml --name none --data.held_out 0 --evaluation null {quiet}"
    assert "held-out" not in cli.ok(none)
    (run,) = (cli.folder / "runs").glob("none-*")
    assert "finished at step 2" in cli.ok(f"train {run} --tracking.progress lines")
    cli.refused(f"evaluate {run}")
    assert cli.ok(f"evaluate {run} --side train")


def test_a_dry_run_says_what_would_happen_and_writes_nothing(cli: CommandLine) -> None:
    said = cli.ok("train small.toml --dry-run --duration '2 steps'")
    assert "would start at step 0" in said and "tokens to train on" in said
    assert not (cli.folder / "runs").exists()
    assert cli("train small.toml --duration '2 steps'").status == 0
    (run,) = (cli.folder / "runs").iterdir()
    before = contents(run)
    assert "finished at step 2" in cli.ok("train small.toml --duration '2 steps' --dry-run")
    longer = f"train {run} --duration '3 steps' --accept schedule --dry-run"
    said = cli.ok(longer)
    assert "would resume at step 2" in said and "accepted: duration" in said
    # What a start refuses, a dry run refuses.
    cli.refused(f"train {run} --optimizer.lr 1 --dry-run")
    cli.refused(f"train {run} --checkpoint.resume never --dry-run")
    text = "--data.sources '[{type: text, paths: [none.txt]}]'"
    cli.refused(f"train small.toml {text} --dry-run")
    assert contents(run) == before


@pytest.mark.parametrize("dry", ["", "--dry-run"])
def test_a_directory_in_use_or_foreign(cli: CommandLine, dry: str) -> None:
    from setpoint.track.run_directory import RunDirectory

    line = f"train small.toml --duration '2 steps' {dry}"
    name = run_directory(cli, "--duration '2 steps'")
    folder = cli.folder / name
    with RunDirectory.create(folder):
        assert f"is in use by process {os.getpid()}" in cli(line).err
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "thesis.txt").write_text("all of it")
    cli.refused(line)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_fault_in_the_trial_call_of_a_model_shows_its_frames(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from setpoint.config.values.user_code import show_all_frames
    from setpoint.model.config import ModelConfig

    family = ModelConfig.__setpoint__
    monkeypatch.setattr(family, "variants", dict(family.variants))
    cli.file(
        "faulty_model.py",
        "from torch import nn\n"
        "from setpoint.model.config import ModelConfig\n"
        "class Faulty(nn.Module):\n"
        "    class Config(ModelConfig, type='faulty_model'):\n"
        "        pass\n"
        "    def __init__(self, config, *, vocab_size):\n"
        "        super().__init__()\n"
        "    def forward(self, tokens):\n"
        "        return self.inner(tokens)\n"
        "    def inner(self, tokens):\n"
        "        return tokens + '?'  # the fault\n",
    )
    line = "train small.toml --import faulty_model --model faulty_model"
    answer = cli(line)
    assert answer.status == 2
    lines = [line for line in answer.err.splitlines() if "^^^" not in line]
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split(", in ")[-1] for line in lines if line.startswith("  File")] == [
        "forward",
        "inner",
    ]
    assert lines[-2].startswith("All frames of the traceback are in runs/small-")
    assert lines[-1].startswith("error: model.type = faulty_model (faulty_model.Faulty) cannot be")
    try:
        answer = cli(f"{line} --traceback")
    finally:
        show_all_frames(False)
    assert ", in require_language_model\n" in answer.err
    assert answer.err.splitlines()[-1] == lines[-1]


def test_a_run_whose_texts_were_moved(cli: CommandLine) -> None:
    file = cli.file("texts/a.txt", "a line of text\n" * 99)
    flags = ("--data.sources=text", "--data.sources.0.paths=texts/a.txt")
    run = record(cli.folder / "run", "small.toml", *flags)
    Path(file).rename(cli.folder / "a.txt")
    (cli.folder / "run/environment.json").write_text('{"directory": "/home/one"}')
    cli.refused(f"train {run} --seed 3")
