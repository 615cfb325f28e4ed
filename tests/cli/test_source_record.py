"""Run directories and checkpoints of a run that was really trained."""

import json
import re
import shutil
from pathlib import Path

import pytest

from setpoint.cli.options import Arguments, Program
from setpoint.cli.show import show
from setpoint.cli.source import open_source
from setpoint.config import Config

from ..support.snapshots import compare, refused
from .conftest import CommandLine
from .test_source import shown

TRAIN = (
    "train small.toml --duration '4 steps' --schedule.horizon 8 --checkpoint.every '2 steps' "
    "--checkpoint.keep null --evaluation.every '2 steps' --evaluation.sequences 2 "
    "--tracking.progress none"
)
RECORD = ("config.json", "origins.json", "config.toml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folder of a run, kept for all tests of this file; empty until the first has trained."""
    return []


@pytest.fixture
def run(cli: CommandLine, trained: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run directory with checkpoints at steps 0, 2 and 4, the last after a resume."""
    if not trained:
        kept = tmp_path_factory.mktemp("trained")
        assert cli(TRAIN.replace("4 steps", "2 steps")).status == 0
        answer = cli(TRAIN)
        assert answer.status == 0, answer
        shutil.copytree(cli.folder / "runs", kept / "runs")
        trained.append(kept)
    else:
        shutil.copytree(trained[0] / "runs", cli.folder / "runs")
    (found,) = (cli.folder / "runs").iterdir()
    return str(found.relative_to(cli.folder))


def test_each_checkpoint_says_what_held_when_it_was_saved(cli: CommandLine, run: str) -> None:
    names = {path.name for path in (cli.folder / run / "checkpoints").iterdir()}
    steps = {"step-00000002", "step-00000004"}
    assert names == {*steps, "latest", "best"}
    for step in steps:
        files = {path.name for path in (cli.folder / run / "checkpoints" / step).iterdir()}
        assert files >= set(RECORD)
    assert shown(cli, f"{run}/checkpoints/step-00000002", "duration") == "'2 steps'"
    assert shown(cli, f"{run}/checkpoints/step-00000004", "duration") == "'4 steps'"
    assert shown(cli, f"{run}/checkpoints/latest", "duration") == "'4 steps'"
    assert shown(cli, run, "duration") == "'4 steps'"


def test_every_command_takes_a_checkpoint(cli: CommandLine, run: str) -> None:
    source = f"{run}/checkpoints/step-00000002"
    assert cli.ok(f"fingerprint {source}") == cli.ok(f"fingerprint {run}")
    assert ": ok" in cli.ok(f"check {source}/")
    assert json.loads(cli.ok(f"show {source} --json"))["name"] == "small"
    assert cli.ok(f"why optimizer.lr {source}").count("small.toml:15:1") == 1
    answer = cli(f"diff {source} {run}/checkpoints/latest --json")
    assert answer.status == 1
    assert [row["path"] for row in json.loads(answer.out)] == ["duration"]
    assert cli.ok(f"diff {run} {run}/checkpoints/latest").startswith("no differences")
    assert source in cli.ok(f"compare {run} {source}")


def test_a_checkpoint_that_was_taken_away_from_its_run(cli: CommandLine, run: str) -> None:
    away = cli.folder / "good-model"
    shutil.copytree(cli.folder / run / "checkpoints" / "step-00000002", away)
    shutil.rmtree(cli.folder / "runs")
    assert shown(cli, "good-model", "duration") == "'2 steps'"


def test_weights_of_a_checkpoint_write(cli: CommandLine, run: str) -> None:
    options = "--prompt a --max-tokens 4 --temperature 0"
    early = cli.ok(f"generate {run}/checkpoints/step-00000002 {options}")
    assert early == cli.ok(f"generate {run} --checkpoint 2 {options}")
    late = cli.ok(f"generate {run}/checkpoints/latest {options}")
    assert late == cli.ok(f"generate {run} --checkpoint latest {options}")
    cli.refused(f"generate {run}/checkpoints/latest --checkpoint 2 {options}")
    cli.refused(f"generate {run}/checkpoints/latest --model.dim 64 {options}")


def test_folders_that_are_no_checkpoints_are_refused(cli: CommandLine, run: str) -> None:
    checkpoints = f"{run}/checkpoints"
    (cli.folder / checkpoints / "step-00000002" / "config.json").write_text("{}")
    (cli.folder / "empty" / "manifest.json").parent.mkdir()
    (cli.folder / "empty" / "manifest.json").write_text("{}")
    lines = [
        f"show {checkpoints}", f"show {checkpoints}/step-00000003", f"show {checkpoints}/step-2",
        f"show {checkpoints}/step-00000002", f"train {checkpoints}/latest",
        f"migrate {checkpoints}/step-00000004", "show runs", "show runs/latest", "show empty",
    ]  # fmt: skip
    told: list[str] = []
    for line in lines:
        answer = cli(line)
        assert answer.status in (1, 2)
        assert answer.out == ""
        text = f"$ setpoint {line}\n{answer.err}".replace(run, "RUN")
        told.append(re.sub(r"not \d+", "not N", text))
    compare("cli/checkpoints", "\n".join(told))


def test_scripts_of_ones_own_have_no_revisions(cli: CommandLine) -> None:
    class Root(Config):
        size: int = 1

    arguments = Arguments(show.of(Program("train.py", Root)))
    with refused():
        open_source("HEAD:exp.toml", arguments)
