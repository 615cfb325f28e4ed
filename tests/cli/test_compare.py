"""`setpoint compare` and `setpoint report` from the command line."""

import io
import json
import shutil
import sys

import pytest

from setpoint.cli.compare import MAX_VALUES
from setpoint.cli.compare import compare as command

from ..report.page.records import setting, write_run
from ..support.snapshots import compare, compare_message
from .conftest import CommandLine
from .test_diff import record

ROWS = """\
{"kind": "train", "step": 1, "mean_loss": 3.5, "lr": 0.1}
{"kind": "train", "step": 2, "mean_loss": %s, "lr": 0.1}
{"kind": "evaluation", "step": 2, "held_out_loss": %s}
"""


@pytest.fixture
def runs(cli: CommandLine) -> CommandLine:
    for index, (rate, loss) in enumerate(((0.5, 2.5), (0.05, 1.25), (0.005, 3.0))):
        folder = cli.folder / f"runs/r{index}"
        record(folder, "small.toml", f"--optimizer.lr={rate}")
        (folder / "metrics.jsonl").write_text(ROWS % (loss - 0.1, loss))
    return cli


def test_runs_are_compared_in_a_table(runs: CommandLine) -> None:
    texts = [
        runs.ok("compare runs"),
        runs.ok("compare runs --sort evaluation.held_out_loss"),
        runs.ok("compare runs --sort train.mean_loss.max --reverse --metric train.mean_loss"),
        runs.ok("compare runs/r0 runs/r1 --metric mean_loss --metric train.mean_loss.min --csv"),
        runs.ok("compare small.toml runs/r2"),
        runs("compare small.toml").out,
    ]
    compare("cli/compare", "\n".join(texts))
    assert "nothing to compare: there are no metrics" in runs("compare small.toml").err


def test_runs_of_one_name_are_told_apart_by_their_folders(runs: CommandLine) -> None:
    for folder in ("a", "b"):
        shutil.copytree(runs.folder / "runs", runs.folder / folder / "runs")
    found = json.loads(runs.ok("compare a/runs b/runs/r0 runs --json"))["runs"]
    labels = [row["run"] for row in found]
    assert len(set(labels)) == len(labels) == 7
    assert {"a/runs/r0", "b/runs/r0", "a/runs/r1"} <= set(labels)


def test_what_differs_beyond_a_bound_is_left_out_and_named(runs: CommandLine) -> None:
    record(runs.folder / "runs/x", "llama3-tiny")
    text, notes = runs("compare runs").out, runs("compare runs").err
    assert "differing values not shown: " in notes and "--all shows them" in notes
    assert len(text.splitlines()[0].split()) == 1 + MAX_VALUES + 4  # run, values, usual metrics
    whole = runs("compare runs --all")
    assert "differing values not shown" not in whole.err
    assert len(whole.out.splitlines()[0].split()) > 1 + MAX_VALUES + 4
    sorted_by = runs("compare runs --sort model.rope_base --csv").out.splitlines()[0]
    assert "model.rope_base" in sorted_by


def test_a_copied_sweep_shows_its_own_runs(runs: CommandLine) -> None:
    import shutil

    point = {"name": "a", "run": "runs/r0", "status": "finished", "fingerprint": "f", "log": "l"}
    record = {"schema": 1, "points": [point], "earlier": []}
    (runs.folder / "runs/sweep.json").write_text(json.dumps(record))
    shutil.copytree(runs.folder / "runs", runs.folder / "copy")
    (runs.folder / "copy/r0/metrics.jsonl").write_text(ROWS % (7.5, 8.5))
    assert "8.5" in runs.ok("compare copy") and "8.5" not in runs.ok("compare runs")
    shutil.rmtree(runs.folder / "runs")
    assert "8.5" in runs.ok("compare copy")
    shutil.move(runs.folder / "copy", runs.folder / "runs")
    shutil.move(runs.folder / "runs/sweep.json", runs.folder / "sweep.json")
    assert "8.5" in runs.ok("compare .")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_fits_a_narrow_terminal(runs: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = runs.ok("compare small.toml tiny --all")
    assert max(map(len, wide.splitlines())) > 200
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    assert runs.ok("compare small.toml tiny --all") == wide
    for width in (60, 30):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "stdout", Terminal())
        assert command.run(command.parse(["small.toml", "tiny"])) == 0
        lines = sys.stdout.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
        assert max(map(len, lines)) <= width and len(lines) > 10


def test_damaged_runs_are_named(runs: CommandLine) -> None:
    (runs.folder / "runs/r0/metrics.jsonl").write_text("nonsense\n")
    (runs.folder / "runs/r1/metrics.jsonl").unlink()
    (runs.folder / "runs/r2/config.json").write_text("{")
    answer = runs("compare runs")
    assert answer.status == 0 and answer.out.count("\n") == 3
    notes = sorted(answer.err.splitlines())
    assert [note.split(": ")[1] for note in notes] == ["r0", "r1", "r2"]
    assert "metrics.jsonl:1 is not a row" in notes[0] and "no metrics.jsonl" in notes[1]
    assert "config.json" in notes[2]
    assert len(json.loads(runs("compare runs --json").out)["notes"]) == 3


def test_runs_are_plotted(runs: CommandLine) -> None:
    assert "evaluation.held_out_loss over optimizer.lr" in runs.ok(
        "compare runs --chart --x optimizer.lr"
    )
    assert "train.mean_loss over the steps" in runs.ok("compare runs --chart --plot out.svg")
    assert (runs.folder / "out.svg").read_text().startswith("<?xml")


def test_a_run_without_metrics_does_not_empty_the_curve_of_its_group(runs: CommandLine) -> None:
    options = "--over optimizer.lr --metric train.mean_loss --chart"
    title = "train.mean_loss over the steps"
    curve = runs.ok(f"compare runs/r0 runs/r2 {options}").partition(title)[2]
    (runs.folder / "runs/r1/metrics.jsonl").unlink()
    with_gap = runs("compare runs " + options).out.partition(title)[2]
    assert with_gap == curve.replace("of 2 runs", "of 3 runs, 2 with this metric") != curve


def test_wrong_comparisons_are_refused(runs: CommandLine) -> None:
    runs.file("runs/empty/nothing.txt", "")
    lines = [
        "compare", "compare nowhere", "compare runs/nowhere", "compare runs/empty",
        "compare runs --metric train.los", "compare runs --metric a.b.c",
        "compare runs --sort los", "compare runs --reverse", "compare runs --csv --chart",
        "compare runs --x lr", "compare runs --x nothing --chart",
        "compare runs --x model.dim --chart", "compare runs --x optimizer.lrr --chart",
        "compare small.toml --chart", "compare runs --plot out.pdf",
        "compare runs --optimizer.lr 3",
    ]  # fmt: skip
    for line in lines:
        runs.refused(line)


# `setpoint report`.


@pytest.fixture
def reported(cli: CommandLine) -> CommandLine:
    for name, lr in (("a", 0.1), ("b", 0.2), ("c", 0.3)):
        write_run(cli.folder / "runs" / name, settings={"optimizer.lr": setting(lr)})
    return cli


def test_reports_of_one_run_of_several_and_of_a_folder(reported: CommandLine) -> None:
    assert reported.ok("report runs/a").startswith("runs/a/report.html: 1 run, 0.")
    assert reported.ok("report runs").startswith("runs/report.html: 3 runs, ")
    found = json.loads(reported.ok("report runs/a runs/b --output two.html --json"))
    assert found["runs"] == 2 and found["notes"] == []
    text = (reported.folder / "two.html").read_text()
    assert len(text.encode()) == found["bytes"] and '"path":"optimizer.lr"' in text


def test_what_is_broken_is_said(reported: CommandLine) -> None:
    (reported.folder / "runs/a/environment.json").write_text("{")
    result = reported("report runs/a")
    assert result.status == 0 and "note: a: environment.json cannot be read" in result.err


@pytest.mark.parametrize(
    "words",
    [
        "runs/a --objective los", "runs/a --direction maximize",
        "runs/a --objective loss --direction up", "runs/a --output a.png", "nothing",
        "runs/a --seed 1", "--sed runs/a",
    ],
)  # fmt: skip
def test_wrong_reports_are_refused(reported: CommandLine, words: str) -> None:
    result = reported(f"report {words}")
    assert result.status == 2
    compare_message(result.err)
    assert not list(reported.folder.rglob("*.html"))
