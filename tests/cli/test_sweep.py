"""`setpoint sweep` from the command line, with real runs where only these show it."""

import json
import re
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ..support.forks import Forks
from ..support.snapshots import compare
from .conftest import CommandLine

SWEEP = """\
extends = "small.toml"

[sweep.grid]
optimizer.lr = [1e-3, 3e-3]

[sweep.zip]
seed = [1, 2]
model.layers = [1, 2]
"""
SOURCES = """\
duration = "5 steps"
[sweep.grid]
source = ["small.toml", "tiny", "own(3)", "tiny(x=1)", "nowhere.toml", "lr.toml", "os:getcwd", 3]
"""
LONG = "--duration '1000000 steps' --schedule constant --evaluation null --tracking.every '1 steps'"


@pytest.fixture
def forked_points(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points are forks, which need not import torch."""
    monkeypatch.setattr(sys, "executable", f"{forks.programs}/python")


def record(cli: CommandLine, folder: str = "runs/sweep-small") -> dict[str, Any]:
    return json.loads((cli.folder / folder / "sweep.json").read_text())


def test_a_dry_run_shows_the_points_and_writes_nothing(cli: CommandLine) -> None:
    cli.file("lr.toml", SWEEP)
    texts = [
        cli.ok("sweep small.toml --optimizer.lr 1e-3,3e-3 --seed 1,01 --dry-run"),
        cli.ok("sweep lr.toml --deterministic true,false --dry-run"),
        cli.ok("sweep small.toml --with null,smoke --name one --dry-run"),
        cli.ok("sweep small.toml --random 2 --optimizer.lr 'log_uniform(1e-4, 1)' --dry-run"),
        cli.ok("sweep small.toml --search 5 --optimizer.lr 'log_uniform(1e-4, 1)' --dry-run"),
    ]
    compare("cli/sweep_dry_run", "\n".join(texts))
    assert not (cli.folder / "runs").exists()
    answer = json.loads(cli.ok("sweep lr.toml --dry-run --json"))
    assert [point["plan"] for point in answer["points"]] == ["start"] * 4
    assert answer["points"][1]["settings"] == {"optimizer.lr": 0.001, "seed": 2, "model.layers": 2}
    cli.file("search.toml", "extends='small.toml'\n[sweep.search]\ntrials=2\n"
             "axes={'optimizer.lr'='log_uniform(1e-4, 1e-2)'}\n")  # fmt: skip
    facts = json.loads(cli("sweep search.toml --draw-seed 4 --dry-run --json").out)
    assert facts["search"]["seed"] == 4


def test_all_points_are_checked_before_any_is_started(cli: CommandLine) -> None:
    cli.refused("sweep small.toml --optimizer.lr 1e-3,-1 --batch.global_size 8,9 --sede 3")
    # Also what only a look from outside finds.
    cli.refused("sweep small.toml --data.sources.0 text --data.sources.0.paths [a],[b]")
    answer = cli("sweep small.toml --optimizer.lr 1e-3,-1 --json")
    assert answer.status == 2
    problem = json.loads(answer.out)["problems"][0]
    assert (problem["path"], problem["points"]) == ("optimizer.lr", ["lr=-1"])


def test_wrong_sweeps_are_refused(cli: CommandLine) -> None:
    cli.file("lr.toml", SWEEP)
    cli.file("other.toml", "[sweep.grid]\ngird.a = [1]\n[sweep.random]\ncuont = 1\n")
    cli.file("search.toml", "[sweep.search]\ntrials = 2\naxes = {seed = 'integer(1, 9)'}\n")
    cli.file(
        "both.toml",
        "[sweep]\ngrid = {seed = [1]}\nsearch = {trials = 1, axes = {seed = 'choice(1)'}}",
    )
    cli.file("source.toml", "extends = 'tiny'\n[sweep.grid]\nsource = ['tiny']\n")
    cli.file("sources.toml", SOURCES)
    cli.file("inherits.toml", "extends = 'sources.toml'\n")
    cli.file("empty.toml", "extends = 'tiny'\n[sweep.grid]\noptimizer.lr = []\n")
    cli.file("drawn.toml", "[sweep.grid]\nseed = 'log_uniform(1, 2)'\n")
    cli.file("inside.toml", "[sweep.grid]\nseed = [1, 'integer(1, 2)']\nextends = ['tiny']\n")
    cli.file("misspelt.toml", "[sweep.random]\ncount = 1\naxes = {seed = 'intger(1, 2)'}\n")
    lines = [
        "sweep",
        "sweep tiny --seed 1",
        "sweep tiny --seed 1,2 --limit 1",
        "sweep tiny --seed null,1",
        "sweep tiny --seed 1,2 --jobs 0",
        "sweep tiny --seed 1,2 --job 2",
        "sweep tiny --optimizer.betas 0.9,0.95",
        "sweep tiny --optimizer.lr '[1e-3, 1e-4]'",
        "sweep tiny --optimizer.lr 'uniform(0, 1)'",
        "sweep tiny --optimizer.lr 1 --random 3",
        "sweep tiny --search 3 --seed 1",
        "sweep tiny --search 3 --random 3 --seed 'integer(1, 2)'",
        "sweep tiny --search 3 --seed 1,2 --direction up",
        "sweep tiny --seed 1,2 --objective train.loss",
        "sweep tiny --seed 1,2 --draw-seed 1",
        "sweep tiny --experiment a,b",
        "sweep tiny,nowhere --seed 1,2",
        "sweep tiny,lr.toml",
        "sweep lr.toml --optimizer.lr 1",
        "sweep lr.toml --seed 1,2",
        "sweep other.toml",
        "sweep search.toml --seed 3",
        "sweep search.toml --random 3",
        "sweep both.toml",
        "sweep source.toml",
        "sweep sources.toml --file lr.toml",
        "sweep inherits.toml",
        "sweep tiny,small.toml --file lr.toml",
        "sweep empty.toml",
        "sweep drawn.toml",
        "sweep inside.toml",
        "sweep misspelt.toml",
        "sweep tiny --random 3 --optimizer.lr 'loguniform(1e-4, 1)'",
        "sweep tiny --optimizer.lrr 1,2,3,4,5,6,7,8,9,10",
        "sweep small.toml --search 2 --seed 1,2 --evaluation null",
        "train lr.toml",
        "check lr.toml",
    ]
    for line in lines:
        cli.refused(line)


def test_presets_and_files_are_an_axis_of_a_file(cli: CommandLine) -> None:
    cli.file("lr.toml", SWEEP)
    cli.file("sources.toml", SOURCES)
    cli.refused("sweep sources.toml --dry-run")
    cli.file("there/small.toml", (cli.folder / "small.toml").read_text())
    sources = 'duration = "5 steps"\n[sweep.grid]\nsource = ["small.toml", "tiny"]\nseed = [1, 2]\n'
    cli.file("there/sources.toml", sources)
    line = "sweep there/sources.toml --optimizer.lr 1e-3,2e-3 --with null,reproducible --dry-run"
    answer = json.loads(cli.ok(f"{line} --json"))
    points = {point["name"]: point["run"].rpartition("-")[2] for point in answer["points"]}
    assert len(points) == 16
    # Each is what the file would be if it extended the source.
    cli.file("there/alone.toml", 'extends = "small.toml"\nduration = "5 steps"\nseed = 2\n')
    told = cli.ok("check there/alone.toml --optimizer.lr 2e-3 --with reproducible")
    assert points["source=small.toml,seed=2,with=reproducible,lr=2e-3"] in told
    drawn = "[sweep.random]\ncount = 3\naxes = {source = 'choice(tiny, small.toml)'}\n"
    cli.file("there/drawn.toml", drawn)
    assert "source=" in cli.ok("sweep there/drawn.toml --dry-run")


def test_remarks_come_once_for_all_points_that_have_them(cli: CommandLine) -> None:
    cli.file("floor.toml", "extends = 'small.toml'\nschedule.floor = 0.2\n")
    texts = [
        cli.ok("sweep floor.toml --schedule constant,cosine --seed 1,2 --dry-run"),
        cli.ok("sweep small.toml --optimizer.lr 1,2 --seed 1,2 --dry-run"),
        cli.ok("sweep small.toml --optimizer.lr 1e-3,2,1e-3,0.001 --dry-run"),
        cli.ok("sweep small.toml --with 'choice(null,reproducible)' --random 2 --dry-run"),
    ]
    compare("cli/sweep_remarks", "\n".join(texts))
    answer = json.loads(cli.ok("sweep small.toml --optimizer.lr 1,2 --dry-run --json"))
    assert [each["points"] for each in answer["cautions"]] == [["lr=1", "lr=2"]]
    line = "sweep floor.toml --schedule constant,cosine --dry-run --json"
    assert json.loads(cli.ok(line))["dropped"][0]["points"] == ["schedule=constant"]


SEARCH = "sweep small.toml --duration '2 steps' --optimizer.lr 'log_uniform(1e-4, 1)' --search 3"


@pytest.mark.parametrize("objective", ["evaluation.heldout_loss", "held_out_losss", "foo"])
def test_a_wrong_objective_is_found_before_the_first_trial(
    cli: CommandLine, objective: str
) -> None:
    cli.refused(f"{SEARCH} --objective {objective}")


@pytest.mark.usefixtures("forked_points")
def test_an_objective_that_no_run_has_stops_the_search(cli: CommandLine) -> None:
    # A column alone is a metric where a run will have it.
    assert "objective" in cli.ok(f"{SEARCH} --objective held_out_loss --dry-run")
    # Rows of training may have columns that the configuration does not tell.
    answer = cli(f"{SEARCH} --objective train.zebra")
    assert answer.status == 1 and answer.out.count(" starts") == 1
    assert [point["status"] for point in record(cli)["points"]] == ["finished"]
    assert "trials before  0" in cli.ok(f"{SEARCH} --dry-run")
    assert "trials before  1" in cli.ok(f"{SEARCH} --objective train.zebra --dry-run")


@pytest.mark.usefixtures("forked_points")
def test_a_run_that_cannot_be_resumed_is_shown_whole(cli: CommandLine) -> None:
    cli.file("one.toml", "extends = 'small.toml'\n[sweep.grid]\nseed = [1]\n")
    cli.ok("sweep one.toml --name one --duration '2 steps'")
    (run,) = (cli.folder / "runs/sweep-one").glob("one-*")
    for name in ("config.json", "origins.json"):
        text = (run / name).read_text()
        (run / name).write_text(text.replace('"2 steps"', '"9 steps"'))
    cli.refused("sweep one.toml --name one --duration '2 steps'")


@pytest.mark.usefixtures("forked_points")
def test_runs_skips_and_goes_on(cli: CommandLine) -> None:
    line = "sweep small.toml --duration '2 steps' --optimizer.lr 1e-3,3e-3 --jobs 2"
    text = cli.ok(line)
    assert "[2/2]" in text and "held-out loss" in text and "2 finished" in text
    assert re.search(r"lowest held-out loss: lr=[13]e-3, [\d.]+  runs/sweep-", text)
    points = record(cli)["points"]
    assert [(p["name"], p["status"], p["exit_status"]) for p in points] == [
        ("lr=1e-3", "finished", 0),
        ("lr=3e-3", "finished", 0),
    ]
    assert points[0]["metrics"]["step"] == 2
    # A point of the sweep is the run that its own command line would make.
    assert "sweep axis --optimizer.lr" in cli.ok(f"why optimizer.lr {points[1]['run']}")
    folder = points[1]["log"].removesuffix("/output.log")
    assert cli.ok(f"diff {folder} {points[1]['run']}").startswith("no differences")
    single = "--experiment sweep-small --duration '2 steps' --optimizer.lr 3e-3"
    assert points[1]["run"] in cli.ok(f"check small.toml {single}")

    again = cli.ok(line)
    assert "2 points, 2 of them finished before" in again and "starts" not in again
    assert record(cli)["points"][0]["seconds"] == points[0]["seconds"]
    dry = cli.ok(f"{line} --seed 1234,5 --dry-run")
    assert dry.count("skip: finished") == 2 and dry.count("  start\n") == 2

    table = cli.ok("compare runs/sweep-small --sort evaluation.held_out_loss")
    assert table.splitlines()[0].split()[:2] == ["run", "optimizer.lr"]

    ended = cli.ok(f"{line} --seed 1234,5")
    assert ended.endswith("compare runs/sweep-small --over seed shows the results\n")
    for order, column in (("val.loss", ""), ("evaluation.held_out_loss.std", ".std")):
        words = f"compare runs/sweep-small --over seed --sort {order} --json"
        means = json.loads(cli.ok(words))["runs"]
        assert [row["runs"] for row in means] == [2, 2]
        first, second = (row[f"evaluation.held_out_loss{column}"] for row in means)
        assert first < second
    drawn = cli.ok("compare runs/sweep-small --over seed --chart --metric train.mean_loss")
    assert {"lr=0.001", "lr=0.003"} == {line.split()[-1] for line in drawn.splitlines()[-2:]}
    # The folder of a point stands for its run.
    for words in ("evaluate {}", "checkpoint list {} --json", "runs goodput {} --json"):
        run = points[1]["run"]
        assert cli.ok(words.format(folder)).replace(folder, run) == cli.ok(words.format(run))


def test_an_interrupted_sweep_saves_and_goes_on(cli: CommandLine, forks: Forks) -> None:
    words = f"sweep small.toml {LONG} --seed 1,2,3 --jobs 2 --json"
    output, errors = cli.folder / "output.json", cli.folder / "errors.txt"
    with output.open("wb") as out, errors.open("wb") as err:
        command = ["-m", "setpoint", *shlex.split(words)]
        process = forks.start(command, cli.folder, out, errors=err)
    folder = cli.folder / "runs/sweep-small"

    def training() -> list[Path]:
        return [path for path in folder.glob("*/metrics.jsonl") if path.stat().st_size > 300]

    end = time.monotonic() + 60
    while len(training()) < 2 and process.running and time.monotonic() < end:
        time.sleep(0.05)
    process.signal(signal.SIGINT)
    status, told = process.wait(), errors.read_text()
    assert status == 130, told
    answer = json.loads(output.read_text())
    assert [point["status"] for point in answer["points"]] == ["stopped", "stopped", "waiting"]
    assert "seed=1 stopped" in told and "the same command resumes" in told
    dry = cli.ok(f"{words.removesuffix('--json')} --dry-run")
    assert dry.count("resume at step") == 2 and dry.count("  start\n") == 1


def test_a_point_that_fails_is_named_and_the_status_is_1(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import setpoint.sweep.launch as launch

    def command(task: Any, modules: object) -> list[str]:
        code = "import sys; sys.exit('error: no room' if sys.argv[1] == '1' else 0)"
        return [sys.executable, "-c", code, str(task.job.seed)]

    monkeypatch.setattr(launch, "train_command", command)
    answer = cli("sweep small.toml --seed 1,2")
    assert answer.status == 1
    assert "failed: seed=1: no room\n  see runs/sweep-small/points/seed=1/output.log" in answer.out
    answer = cli("sweep small.toml --seed 1,2 --json")
    assert answer.status == 1
    assert json.loads(answer.out)["points"][0]["reason"] == "no room"


def test_a_dry_run_says_that_optuna_is_missing(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli(f"{SEARCH} --dry-run").err == ""
    monkeypatch.setitem(sys.modules, "optuna", None)
    answer = cli(f"{SEARCH} --dry-run")
    assert (answer.status, answer.err) == (
        0,
        "note: a search needs the package 'optuna': pip install 'setpoint[search]'\n",
    )


def test_a_file_names_no_code(cli: CommandLine) -> None:
    cli.file("evil.py", "raise SystemExit('imported')\n")
    cli.file("evil.toml", 'extends = "tiny"\n[sweep.grid]\nwith = ["evil:pwn", "evil:pwn(1)"]\n')
    cli.refused("sweep evil.toml --dry-run")
    assert "evil" not in sys.modules


def test_the_folder_is_named_after_a_name_that_is_typed(cli: CommandLine) -> None:
    assert cli.ok("sweep small.toml --name lab --seed 1,2 --dry-run").startswith("runs/sweep-lab:")
    assert "runs/own:" in cli.ok(
        "sweep small.toml --name lab --experiment own --seed 1,2 --dry-run"
    )
    # Where names are what varies, the points lie in one folder all the same.
    text = cli.ok("sweep small.toml --name a,b --seed 1,2 --dry-run")
    assert text.startswith("runs/sweep-small:")
