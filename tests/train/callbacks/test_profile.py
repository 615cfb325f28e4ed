"""Profiles of real runs: files, events, what people see, and that nothing else changes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import record_function

from setpoint.parallel.world import World
from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.callbacks.profile import ProfileCallback, watching_callbacks
from setpoint.train.loop import Callback, Loop
from setpoint.train.position import Position
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from ...profile.traces import read_trace, spans
from ...support.cases import few
from ..small import essence, events, rows, small_job

WINDOW = ("profiling.wait=1", "profiling.warmup=1", "profiling.active=2")
CONSTANT = "schedule=constant"  # which does not depend on the duration
ALL = ("shapes", "memory", "stacks", "flops")
PARTS = ["data", "forward", "backward", "forward", "backward", "optimizer step"]


def traces(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in (run / "traces").rglob("*.json.gz"))


def recording() -> bool:
    """Whether any profiler of torch runs."""
    enabled: Any = vars(torch.autograd)["_profiler_enabled"]
    return enabled()


def test_a_run_that_is_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("duration=8 steps", *WINDOW, "profiling.repeat=2", "tracking.progress=lines")
    run = train(small_job(tmp_path, *flags)).directory
    assert traces(run) == [
        "traces/rank-0/steps-3-4.json.gz",
        "traces/rank-0/steps-7-8.json.gz",
    ]
    found = read_trace(run / "traces/rank-0/steps-3-4.json.gz")
    # Two micro-batches a step.
    assert spans(found) == ["step 3", *PARTS, "step 4", *PARTS]
    by_name = {e["name"]: e for e in found if e.get("cat") == "user_annotation"}
    whole = by_name["step 4"]
    for part in set(PARTS):
        inner = by_name[part]
        assert whole["ts"] <= inner["ts"]
        assert inner["ts"] + inner["dur"] <= whole["ts"] + whole["dur"]
    assert [(e["step"], e["first"], e["trace"], e["table"]) for e in events(run, "profile")] == [
        (4, 3, "traces/rank-0/steps-3-4.json.gz", "traces/rank-0/steps-3-4.txt"),
        (8, 7, "traces/rank-0/steps-7-8.json.gz", "traces/rank-0/steps-7-8.txt"),
    ]
    table = (run / "traces/rank-0/steps-3-4.txt").read_text()
    shown = capsys.readouterr().out
    assert table in shown
    assert "\nprofile of steps 3 to 4: traces/rank-0/steps-3-4.json.gz\n" in shown
    assert "cycles" not in shown
    assert not recording()


def test_nothing_else_changes(tmp_path: Path) -> None:
    with_all = [f"profiling.{name}=true" for name in ALL]
    plain = train(small_job(tmp_path / "a", "duration=6 steps")).directory
    flags = ("duration=6 steps", *WINDOW, *with_all)
    profiled = train(small_job(tmp_path / "b", *flags)).directory
    assert rows(profiled) == rows(plain)
    assert essence(profiled) == essence(plain)
    assert traces(profiled)


def test_steps_are_those_of_the_run_after_a_resume(tmp_path: Path) -> None:
    train(small_job(tmp_path, "duration=5 steps", CONSTANT))
    run = train(small_job(tmp_path, "duration=10 steps", CONSTANT, *WINDOW)).directory
    assert traces(run) == ["traces/rank-0/steps-8-9.json.gz"]
    assert spans(read_trace(run / traces(run)[0]))[0] == "step 8"


class Interrupt(Callback):
    """Ends a session after a step by force, or asks for its end."""

    def __init__(self, step: int, how: str) -> None:
        self.step, self.how = step, how

    def after_step(self, loop: Loop, result: StepResult) -> None:
        if loop.position.step == self.step:
            if self.how == "SIGTERM":
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                raise KeyboardInterrupt if self.how == "Ctrl-C" else ValueError("broken")


@pytest.mark.parametrize(
    ("how", "step", "kept"),
    few(
        [
            (how, step, kept)
            for how in ("SIGTERM", "Ctrl-C", "error", "duration")
            for step, kept in ((1, False), (3, True))
        ],
        [("Ctrl-C", 1, False), ("SIGTERM", 3, True), ("error", 3, True), ("duration", 3, True)],
    ),
)
def test_a_session_that_ends_within_a_cycle(
    tmp_path: Path,
    how: str,
    step: int,
    kept: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if how == "duration":
        # The session has fewer steps left than the run has.
        train(small_job(tmp_path, f"duration={8 - step} steps", CONSTANT))
    else:
        added: Any = lambda *_: [Interrupt(step, how)]  # noqa: E731
        monkeypatch.setattr("setpoint.train.run.package_callbacks", added)
    flags = ("duration=8 steps", CONSTANT, "profiling.active=5", "tracking.progress=lines")
    job = small_job(tmp_path, *flags)
    if how in ("Ctrl-C", "error"):
        with pytest.raises((KeyboardInterrupt, ValueError)):
            train(job)
    else:
        train(job)
    (run,) = (tmp_path / "runs").iterdir()
    first = 8 - step + 3 if how == "duration" else 3
    assert traces(run) == ([f"traces/rank-0/steps-{first}-{first}.json.gz"] if kept else [])
    shown = capsys.readouterr().out
    if kept:
        assert spans(read_trace(run / traces(run)[0]))[0] == f"step {first}"
        assert f"profile of steps {first} to {first}, of 5 that were to be recorded," in shown
    else:
        assert "when 0 of 1 cycles had recorded a step" in shown
    assert not recording()


def test_a_trace_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shared").write_text("")
    job = small_job(tmp_path, "duration=5 steps", *WINDOW, "tracking.progress=lines")
    blocked = tmp_path / "runs" / "x" / "traces" / "rank-0" / "steps-3-4.json.gz"
    blocked.mkdir(parents=True)
    (tmp_path / "runs" / "x" / ".lock").touch()
    run = train(job, tmp_path / "runs" / "x").directory
    (event,) = events(run, "profile")
    assert "steps-3-4.json.gz" in event["lost"] and "trace" not in event
    assert "profile of steps 3 to 4 could not be written: " in capsys.readouterr().out
    assert events(run)[-1]["status"] == 0


def test_where_traces_lie(tmp_path: Path) -> None:
    flags = ("duration=4 steps", *WINDOW, f"profiling.directory={tmp_path / 'shared'}")
    run = train(small_job(tmp_path, *flags)).directory
    (event,) = events(run, "profile")
    path = Path(event["trace"])
    assert path == tmp_path / "shared" / run.name / "rank-0" / "steps-3-4.json.gz"
    read_trace(path)


@pytest.mark.parametrize(("rank", "ranks"), [(1, "[0]"), (1, "null"), (0, "[0]")])
def test_only_the_ranks_that_are_asked_for(tmp_path: Path, rank: int, ranks: str) -> None:
    job = small_job(tmp_path, f"profiling.ranks={ranks}")
    device = torch.device("cpu")
    components = SimpleNamespace(world=World(device, rank=rank), device=device)
    run: Any = SimpleNamespace(
        job=job, components=components, directory=tmp_path, events=None, progress=None,
        stop=SimpleNamespace(limits=None),
    )  # fmt: skip
    profiled = [each for each in watching_callbacks(run) if isinstance(each, ProfileCallback)]
    assert [each.rank for each in profiled] == ([rank] if ranks == "null" or rank == 0 else [])


def test_the_loop_is_as_before(tmp_path: Path) -> None:
    """Spans are set only while something may be recorded."""
    job = small_job(tmp_path, "duration=6 steps", *WINDOW)
    components = build_components(job)
    assert job.profiling is not None
    seen: list[bool] = []

    class Look(Callback):
        def after_step(self, loop: Loop, result: StepResult) -> None:
            seen.append(loop.times.trace is record_function)

    class Nothing:
        def write(self, *_: Any, **__: Any) -> None: ...
        def note(self, _: str) -> None: ...

    nothing: Any = Nothing()
    profiler = ProfileCallback(job.profiling, tmp_path, 0, components.device, nothing, nothing)
    Loop(job, components, [profiler, Look()], StopRequest(), Position()).run()
    assert seen == [True, True, True, False, False, False]
