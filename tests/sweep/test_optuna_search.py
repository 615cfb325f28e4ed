"""Search with Optuna, over runs that only pretend: proposals, judgement, and going on."""

import sys
from pathlib import Path

import pytest

from setpoint.config import SetpointError
from setpoint.report.goodput import FAILED, FINISHED, STOPPED
from setpoint.sweep.launch import Launcher
from setpoint.sweep.optuna_search import (
    STORAGE,
    Axes,
    SearchRun,
    corners,
    import_optuna,
    optuna_axes,
    point_of,
    study_name,
    trials_before,
)
from setpoint.sweep.space import Drawn
from setpoint.sweep.sweep_file import Search
from setpoint.sweep.sweep_record import SweepTask

from ..support.snapshots import refused
from .sample import FINISH, maker, pretend

AXES: Axes = {
    ("optimizer", "lr"): Drawn.read("log_uniform(1e-4, 1)").distribution,
    ("model", "layers"): Drawn.read("integer(1, 3)").distribution,
    ("batch", "global_size"): Drawn.read("choice(4, 8)").distribution,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sweep").mkdir()
    return tmp_path


def search(
    folder: Path, trials: int, code: str = FINISH, jobs: int = 1, axes: Axes = AXES, **more: object
) -> SearchRun:
    spec = Search(trials=trials, **more)
    run = SearchRun(spec, axes, maker(folder), folder / "sweep", lambda _: None)
    with Launcher(jobs, lambda _: None, pretend(code)) as launcher:
        run.run(launcher)
    return run


def values(run: SearchRun) -> list[float | None]:
    return [trial.value for trial in run._study.trials]


def test_a_search_ends_with_the_best_of_its_trials(folder: Path) -> None:
    run = search(folder, 3)
    assert run.counts() == {"complete": 3}
    found = {task.name: run.value(task) for task in run.tasks}
    best = run.best()
    assert best is not None
    assert best["value"] == min(value for value in found.values() if value is not None)
    assert found[best["point"]] == best["value"]
    assert run._study.best_value == best["value"]
    assert (folder / "sweep/search.db").is_file()
    assert all(task.name.count("=") == 3 for task in run.tasks)


def test_a_search_goes_on_as_if_it_had_not_been_interrupted(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for each in (whole, parts):
        (each / "sweep").mkdir(parents=True)
    search(parts, 1)
    again = search(parts, 2)
    assert len(again.tasks) == 2
    assert values(again) == values(search(whole, 2))
    # All trials are there already.
    assert values(search(parts, 2, code="sys.exit(1)")) == values(again)


def test_a_trial_that_was_stopped_is_run_again(folder: Path) -> None:
    first = search(folder, 1, code="sys.exit(75)")
    assert [task.status for task in first.tasks] == [STOPPED]
    assert first.counts() == {"running": 1} and first.best() is None
    second = search(folder, 1)
    assert second.counts() == {"complete": 1}
    assert [task.name for task in second.tasks] == [task.name for task in first.tasks]


def test_failures_and_missing_objectives(folder: Path) -> None:
    run = search(folder, 1, code="sys.exit('error: no')")
    assert run.counts() == {"fail": 1} and run.best() is None
    assert {task.status for task in run.tasks} == {FAILED}


def test_one_run_without_the_objective_fails_alone_once_another_had_it(folder: Path) -> None:
    unlike = FINISH.replace("held_out_loss", "other")
    search(folder, 1)
    assert search(folder, 2, code=unlike).counts() == {"complete": 1, "fail": 1}


def test_proposals_that_are_equal_run_once(folder: Path) -> None:
    started: list[SweepTask] = []
    axes: Axes = {("batch", "global_size"): Drawn.read("choice(4, 8)").distribution}
    spec = Search(trials=4)
    run = SearchRun(spec, axes, maker(folder), folder / "sweep", lambda _: None)
    with Launcher(2, started.append, pretend(FINISH)) as launcher:
        run.run(launcher)
    assert run.counts() == {"complete": 4}
    assert len(run.tasks) <= 2 and {task.status for task in run.tasks} == {FINISHED}
    assert len(started) == 2 * len(run.tasks)  # each starts and ends once


def test_a_proposal_that_is_no_valid_configuration(folder: Path) -> None:
    axes: Axes = {
        ("model", "dim"): Drawn.read("choice(48, 32)").distribution,
        ("model", "heads"): Drawn.read("choice(1, 3)").distribution,
    }
    run = search(folder, 5, axes=axes, sampler="random")
    counts = run.counts()
    assert counts["complete"] + counts["fail"] == 5
    assert len(run.rejected) == counts["fail"] > 0
    assert "is not a valid configuration: model.heads" in run.rejected[0]


# The trials of a search: counted without writing, and told apart from those of other searches.


def test_trials_are_counted_without_a_trace(tmp_path: Path) -> None:
    make, folder = maker(tmp_path), tmp_path / "sweep"
    assert trials_before(Search(trials=9), AXES, make, folder) == 0
    assert not (folder / STORAGE).exists()
    search(tmp_path, 2)
    before = (folder / STORAGE).read_bytes()
    assert trials_before(Search(trials=9), AXES, make, folder) == 2
    assert trials_before(Search(trials=9, objective="train.loss"), AXES, make, folder) == 0
    assert (folder / STORAGE).read_bytes() == before
    (folder / STORAGE).write_text("no database " * 100)
    with pytest.raises(SetpointError, match="the trials cannot be read"):
        trials_before(Search(trials=9), AXES, make, folder)


def test_searches_that_cannot_be_compared_are_told_apart(tmp_path: Path) -> None:
    make = maker(tmp_path)
    spec = Search(trials=3)
    name = study_name(spec, AXES, make)
    assert study_name(Search(trials=5, seed=3), AXES, make) == name
    assert study_name(Search(trials=3, direction="maximize"), AXES, make) != name
    fewer = {path: axis for path, axis in AXES.items() if path[0] != "batch"}
    assert study_name(spec, fewer, make) != name


def test_without_optuna_the_answer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with refused():
        import_optuna()


# What a search may propose, and what a proposal means.


def test_corners_reach_every_limit_of_every_axis() -> None:
    found = [[item.plain() for item in point] for point in corners(AXES)]
    assert found == [[1e-4, 1, 4], [1.0, 1, 4], [1e-4, 3, 4], [1e-4, 1, 8]]


def test_proposals_become_points_that_read_well() -> None:
    params = {"optimizer.lr": 0.00123456789, "model.layers": 2, "batch.global_size": "8"}
    assert [item.plain() for item in point_of(AXES, params)] == [0.0012346, 2, 8]
    params["optimizer.lr"] = 1e-4 * (1 - 1e-9)
    assert point_of(AXES, params)[0].value == 1e-4
    assert list(optuna_axes(AXES)) == list(params)
