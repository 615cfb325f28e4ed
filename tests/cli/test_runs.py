"""`setpoint runs ...`: as people type it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from setpoint.cli import runs as chapter
from setpoint.config import fingerprint, record_files
from setpoint.config.composition import compose
from setpoint.train.config import Job

from .conftest import CommandLine

SMALL = ("tiny-1", "tiny-2", "tiny-3")


@pytest.fixture(autouse=True)
def runs(cli: CommandLine) -> Iterator[None]:
    """Three runs, of which the last one has no metrics."""
    for number, name in enumerate(SMALL):
        job = compose(Job, "tiny", flags=[f"--optimizer.lr={10.0**-number}"]).resolve()
        for file, text in record_files(job).items():
            cli.file(f"runs/exp/{name}/{file}", text)
        start = {"time": f"2026-01-0{number + 1}", "event": "start", "step": 0}
        end = {"time": f"2026-01-0{number + 1}", "event": "end", "status": 0}
        cli.file(f"runs/exp/{name}/events.jsonl", f"{json.dumps(start)}\n{json.dumps(end)}\n")
        if number < 2:
            row = {"kind": "train", "step": 5 + number, "mean_loss": 2.0 - number}
            cli.file(f"runs/exp/{name}/metrics.jsonl", f"{json.dumps(row)}\n")
    yield


def listed(cli: CommandLine, more: str = "") -> list[str]:
    found = json.loads(cli.ok(f"runs list --json {more}"))["runs"]
    return [row["run"].removeprefix("exp/") for row in found]


def test_lists_filters_and_sorts(cli: CommandLine) -> None:
    assert cli.ok("runs list") == (
        "run         status    step  train.mean_loss  started\n"
        "exp/tiny-1  finished  5     2                2026-01-01\n"
        "exp/tiny-2  finished  6     1                2026-01-02\n"
        "exp/tiny-3  finished  0     -                2026-01-03\n"
    )
    assert listed(cli, "--where 'optimizer.lr > 0.05'") == ["tiny-1", "tiny-2"]
    assert listed(cli, "--sort train.mean_loss") == ["tiny-2", "tiny-1", "tiny-3"]
    assert listed(cli, "--sort train.mean_loss --reverse") == ["tiny-1", "tiny-2", "tiny-3"]
    assert listed(cli, "runs/exp --where 'train.mean_loss < 1.5'") == ["tiny-2"]
    assert (
        cli.ok("runs list --column run --column optimizer.lr --csv").splitlines()[1]
        == "exp/tiny-1,1.0"
    )
    assert cli.ok("runs list --where 'seed = 5'") == "no runs\n"
    twice = cli.ok("runs list runs/exp runs --csv --column run").splitlines()[1:]
    assert set(twice) == {f"runs/exp/tiny-{number}" for number in (1, 2, 3)}


def test_numbers_that_json_lacks_have_the_names_of_the_metrics_file(cli: CommandLine) -> None:
    for name, loss in (("tiny-1", "NaN"), ("tiny-2", "-Infinity")):
        row = {"kind": "train", "step": 5, "mean_loss": loss}
        cli.file(f"runs/exp/{name}/metrics.jsonl", f"{json.dumps(row)}\n")
    rows = json.loads(cli.ok("runs list --json --column train.mean_loss"))["runs"]
    assert [row.get("train.mean_loss") for row in rows] == ["NaN", "-Infinity", None]


def test_a_place_without_runs(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    for line in ("runs list", "runs list runs"):
        answer = cli(line)
        assert (answer.status, answer.out) == (0, "no runs\n")
        assert "there are no runs yet in " in answer.err and "new/runs" in answer.err
    assert json.loads(cli.ok("runs list --json"))["runs"] == []
    assert "misspelt cannot be read: No such file" in cli("runs list misspelt").err


def test_tags_notes_and_the_archive(cli: CommandLine) -> None:
    cli.ok("runs tag good runs/exp/tiny-1 runs/exp/tiny-2")
    cli.ok("runs tag good --remove runs/exp/tiny-2")
    again = cli("runs tag good --remove runs/exp/tiny-2")
    assert (again.status, "runs/exp/tiny-2 has no tag good" in again.err) == (0, True)
    cli.ok("runs note runs/exp/tiny-3 'lr=3 went wrong'")
    assert listed(cli, "--where 'tags ~ good or note ~ wrong'") == ["tiny-1", "tiny-3"]
    cli.ok("runs archive runs/exp/tiny-1")
    answer = cli("runs list")
    assert "tiny-1" not in answer.out and "archived runs not shown: 1" in answer.err
    assert len(listed(cli, "--archived")) == 3
    cli.ok("runs archive --restore runs/exp/tiny-1")
    assert len(listed(cli)) == 3
    assert json.loads((cli.folder / "runs/exp/tiny-1/labels.json").read_text())["tags"] == ["good"]


def test_more_than_can_be_read(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chapter, "MAX_RUNS", 2)
    answer = cli("runs list")
    assert "tiny-1" not in answer.out and "note: runs not shown: 1" in answer.err
    assert "tiny-1" in cli.ok("runs list --all")


def test_runs_are_verified(cli: CommandLine) -> None:
    paths = [f"runs/exp/{name}" for name in SMALL]
    note = "  not sealed: there is no chain.jsonl"
    expected = [line for path in paths for line in (f"{path}: ok", note)]
    assert cli.ok(f"runs verify {' '.join(paths)}").splitlines() == expected
    metrics = cli.folder / paths[0] / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"kind": "train", "step": 1}\n{"torn\n')
    config = cli.folder / paths[1] / "config.json"
    was = fingerprint(compose(Job, "tiny", flags=["--optimizer.lr=0.1"]).resolve())
    config.write_text(config.read_text().replace(was, "0" * len(was)))
    answer = cli(f"runs verify {' '.join(paths)}")
    assert answer.status == 1
    lines = [line for line in answer.out.splitlines() if line != note]
    first, damaged, order, second, other, third = lines
    assert (first, second, third) == (f"{paths[0]}:", f"{paths[1]}:", f"{paths[2]}: ok")
    assert "metrics.jsonl:3 is not a row" in damaged
    assert order == "  metrics.jsonl: a row of train at step 1 comes after step 5"
    assert "the record was changed after it was written: it states the fingerprint 000" in other
    assert "is missing, not 123" in cli(f"runs verify {paths[2]} --head 123").out
    assert (
        "--head applies to one run, but 3 are given"
        in cli(f"runs verify {' '.join(paths)} --head 1").err
    )


@pytest.mark.parametrize(
    "words",
    [
        "list --where 'lr >'", "list --where 'status = finishd'", "list --sort train.mean_los",
        "list --reverse", "list nowhere", "list --optimizer.lr 3", "tag 'a b' runs/exp/tiny-1",
        "tag runs/exp/tiny-1 good", "tag good runs/exp", "note runs/exp/tiny-1",
        "note runs/exp/tiny-1 a b",
    ],
)  # fmt: skip
def test_wrong_words_are_refused(cli: CommandLine, words: str) -> None:
    listed(cli)  # makes the index
    cli.refused(f"runs {words}")


def test_a_checkpoint_is_no_run(cli: CommandLine) -> None:
    run = "runs/exp/tiny-1"
    step = f"{run}/checkpoints/step-00000002"
    for file, text in record_files(compose(Job, "tiny").resolve()).items():
        cli.file(f"{step}/{file}", text)
    cli.file(f"{step}/manifest.json", "{}")
    cli.refused(f"runs goodput {run}/checkpoints")
    for words in (f"runs goodput {step}", f"watch {step}", f"replay {step} 1"):
        cli.refused(words)


def test_a_name_that_is_too_long_is_no_traceback(cli: CommandLine) -> None:
    for words in ("runs goodput", "report", "checkpoint verify"):
        cli.refused(f"{words} {'a' * 400}")


def test_a_preset_or_file_means_its_run(cli: CommandLine) -> None:
    cli.file("mine.toml", 'extends = "tiny"\nname = "mine"\nparallel.shard = 2\n')
    cli.refused("runs tag good mine.toml")
    job = compose(Job, "tiny", flags=["name=mine"]).resolve()
    path = f"runs/mine-{fingerprint(job)[:8]}"
    for file, text in record_files(job).items():
        cli.file(f"{path}/{file}", text)
    cli.ok("runs tag good mine.toml")
    assert json.loads((cli.folder / path / "labels.json").read_text())["tags"] == ["good"]
    assert cli("report mine.toml").out.startswith(f"{path}/report.html: 1 run")
    cli.refused("checkpoint list mine.toml")
    cli.refused("watch tiny")
    cli.file("mine.toml", 'extends = "tiny"\nname = "mine"\noptimizer.lr = 1\n')
    cli.refused("report mine.toml")
    cli.file("mine.toml", 'extends = "tiny"\nseed = "null"\n')
    cli.refused("verify mine.toml")
