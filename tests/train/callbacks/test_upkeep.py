"""Profiles of real runs: files, events, what people see, and that nothing else changes."""

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from setpoint.compile.config import Compile
from setpoint.compile.watch import News
from setpoint.config import resolve
from setpoint.parallel.world import World
from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.callbacks.upkeep import (
    CollectCallback,
    CompileCallback,
    ProfileCallback,
    watching_callbacks,
)
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.position import Position
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from ...profile.traces import read_trace, recording, spans
from ..small import Notes, essence, events, loop_of, rows, small_job

WINDOW = ("profiling.wait=1", "profiling.warmup=1", "profiling.active=2")
CONSTANT = "schedule=constant"  # which does not depend on the duration
ALL = ("shapes", "memory", "stacks", "flops")
PARTS = ["data", "forward", "backward", "forward", "backward", "optimizer step"]


def traces(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in (run / "traces").rglob("*.json.gz"))


def test_a_run_that_is_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("duration=8 steps", *WINDOW, "profiling.repeat=2", "tracking.progress=lines")
    run = train(small_job(tmp_path, *flags)).directory
    assert traces(run) == ["traces/rank-0/steps-3-4.json.gz", "traces/rank-0/steps-7-8.json.gz"]
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
    assert not recording()


def test_nothing_else_changes(tmp_path: Path) -> None:
    """Of what is learned and logged, neither by profiles nor by paced garbage collection."""
    with_all = [f"profiling.{name}=true" for name in ALL]
    plain = train(small_job(tmp_path / "a", "duration=4 steps")).directory
    flags = ("duration=4 steps", *WINDOW, "profiling.active=1", *with_all,
             "resilience.gc.every=1 steps")  # fmt: skip
    profiled = train(small_job(tmp_path / "b", *flags)).directory
    assert rows(profiled) == rows(plain)
    assert essence(profiled) == essence(plain)
    assert traces(profiled)


def test_steps_are_those_of_the_run_after_a_resume(tmp_path: Path) -> None:
    """In the folder of the run's name where several runs share one."""
    train(small_job(tmp_path, "duration=5 steps", CONSTANT))
    flags = (CONSTANT, *WINDOW, f"profiling.directory={tmp_path / 'shared'}")
    run = train(small_job(tmp_path, "duration=10 steps", *flags)).directory
    (event,) = events(run, "profile")
    path = Path(event["trace"])
    assert path == tmp_path / "shared" / run.name / "rank-0" / "steps-8-9.json.gz"
    assert spans(read_trace(path))[0] == "step 8"


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
    ("how", "step", "kept"), [("Ctrl-C", 2, False), ("SIGTERM", 3, True), ("error", 3, True)]
)
def test_a_session_that_ends_within_a_cycle(
    tmp_path: Path,
    how: str,
    step: int,
    kept: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    added: Any = lambda *_: [Interrupt(step, how)]  # noqa: E731
    monkeypatch.setattr("setpoint.train.run.package_callbacks", added)
    flags = ("duration=8 steps", "profiling.active=5", "tracking.progress=lines")
    errors = () if how == "SIGTERM" else (KeyboardInterrupt, ValueError)
    with pytest.raises(errors) if errors else nullcontext():
        train(small_job(tmp_path, *flags))
    (run,) = (tmp_path / "runs").iterdir()
    assert traces(run) == (["traces/rank-0/steps-3-3.json.gz"] if kept else [])
    shown = capsys.readouterr().out
    if kept:
        assert spans(read_trace(run / traces(run)[0]))[0] == "step 3"
        assert "profile of steps 3 to 3, of 5 to be recorded," in shown
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
    run = train(job, directory=tmp_path / "runs" / "x").directory
    (event,) = events(run, "profile")
    assert "steps-3-4.json.gz" in event["lost"] and "trace" not in event
    assert "profile of steps 3 to 4 could not be written: " in capsys.readouterr().out
    assert events(run)[-1]["status"] == 0


@pytest.mark.parametrize(("rank", "ranks"), [(1, "[0]"), (1, "null"), (0, "[0]")])
def test_only_the_ranks_that_are_asked_for(tmp_path: Path, rank: int, ranks: str) -> None:
    job = small_job(tmp_path, f"profiling.ranks={ranks}")
    world = World(torch.device("cpu"), rank=rank)
    run: Any = SimpleNamespace(
        job=job, world=world, directory=tmp_path, events=None, progress=None,
        stop=SimpleNamespace(limits=None),
    )  # fmt: skip
    profiled = [each for each in watching_callbacks(run) if isinstance(each, ProfileCallback)]
    assert [each.rank for each in profiled] == ([rank] if ranks == "null" or rank == 0 else [])


class Events:
    """Keeps events."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def write(self, event: str, **details: Any) -> None:
        self.seen.append({"event": event, **details})


def at(step: int, seconds: float) -> Any:
    before = SimpleNamespace(step=step - 1, seconds=seconds - 2.0)
    return SimpleNamespace(previous=before, position=SimpleNamespace(step=step, seconds=seconds))


def callback(news: list[News]) -> tuple[CompileCallback, Events, Notes]:
    events, notes = Events(), Notes()
    parts = SimpleNamespace(compiled=SimpleNamespace(), device=torch.device("cpu"))
    world = World(torch.device("cpu"))
    run: Any = SimpleNamespace(components=parts, world=world, events=events, progress=notes)
    made = CompileCallback(resolve(Compile()), run)
    made.watch = cast(Any, SimpleNamespace(news=iter(news).__next__))
    return made, events, notes


def test_the_first_update_and_later_ones() -> None:
    news = [
        News(graphs=2, seconds=1.25),
        News(),
        News(graphs=1, seconds=0.5, recompilations=("size",), fallbacks=("graph break",)),
        News(fallbacks=("the last evaluation",)),
    ]
    told, events, notes = callback(news)
    told.after_step(at(1, 2.0), None)  # pyright: ignore[reportArgumentType]
    told.after_step(at(2, 4.0), None)  # pyright: ignore[reportArgumentType]
    told.after_step(at(3, 6.0), None)  # pyright: ignore[reportArgumentType]
    told.finish(at(3, 6.0))
    first, second, last = events.seen
    assert first == {
        "event": "compile", "step": 1, "graphs": 2, "seconds": 1.25, "recompilations": [],
        "fallbacks": [], "first_step_seconds": 2.0,
    }  # fmt: skip
    assert (second["step"], second["recompilations"]) == (3, ["size"])
    assert "first_step_seconds" not in second
    assert last["fallbacks"] == ["the last evaluation"]
    assert notes.seen == [
        "compile: 2 graphs in 1.2 s (step 1)",
        "compile: 1 graph in 0.5 s, 1 recompiled (step 3)",
        "compile: graph break (step 3)",
        "compile: the last evaluation (step 3)",
    ]


def test_artifacts_are_written_by_one_rank_where_anything_was_compiled() -> None:
    """A folder that is full ends no run."""

    class Kept:
        path = Path("kept/job.bin")
        saved = 0

        def load(self) -> int | None:
            return None

        def save(self) -> None:
            self.saved += 1
            raise OSError(28, "No space left on device")

    for writes in (True, False):
        told, _, notes = callback([News(graphs=1), News()])
        kept: Any = Kept()
        told.artifacts, told.writes = kept, writes
        told.start(at(1, 2.0))
        told.after_step(at(1, 2.0), None)  # pyright: ignore[reportArgumentType]
        told.after_step(at(2, 4.0), None)  # pyright: ignore[reportArgumentType]
        assert kept.saved == writes
        assert notes.seen[0] == "compile: kept/job.bin is damaged and will be rewritten"
        full = "compile: the artifacts kept/job.bin cannot be written: No space left on device"
        assert notes.seen.count(full) == writes


def test_a_session_reports_its_memory_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ("schedule=constant", "tracking.progress=lines")
    outcome = train(small_job(tmp_path, "duration=3 steps", *flags))
    found = events(outcome.directory, "memory")
    assert len(found) == 1
    size = 4 * sum(p.numel() for p in outcome.components.model.parameters())
    report = found[0]
    assert (report["step"], report["parameters"], report["gradients"]) == (1, size, size)
    assert 2 * size < report["optimizer_state"] < 2.1 * size
    assert report["rest"] is None
    shown = [line for line in "".join(capfd.readouterr()).splitlines() if "memory: " in line]
    assert len(shown) == 1
    assert "parameters " in shown[0] and "peak memory (RSS) " in shown[0]
    train(small_job(tmp_path, "duration=5 steps", *flags))
    assert [event["step"] for event in events(outcome.directory, "memory")] == [1, 4]


@pytest.fixture(autouse=True)
def automatic() -> Iterator[None]:
    """As Python begins, and as the next test wants it."""
    gc.enable()
    yield
    gc.enable()


class Watch(Callback):
    """Counts collections up to each update, and may end the run by force."""

    phase = Phase.LAST

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.seen: list[int] = []
        self.by_step: dict[int, list[int]] = {}

    def count(self, phase: str, details: dict[str, Any]) -> None:
        if phase == "start":
            self.seen.append(details["generation"])

    def start(self, loop: Loop) -> None:
        gc.callbacks.append(self.count)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        self.by_step[loop.position.step] = list(self.seen)
        self.seen.clear()
        assert not gc.isenabled()
        if self.error is not None and loop.position.step == 3:
            raise self.error

    def close(self, loop: Loop) -> None:
        gc.callbacks.remove(self.count)


def run(folder: Path, *flags: str, watch: Watch, start: int = 0) -> None:
    job = small_job(folder, "duration=7 steps", *flags)
    assert job.resilience.gc is not None
    components = build_components(job)
    collect = CollectCallback(job.resilience.gc)
    position = Position(step=start, tokens=start * 64)
    # The one that counts comes after, so that it sees what a step has collected.
    Loop(job, components, [collect, watch], StopRequest(), position).run()


@pytest.mark.parametrize(
    ("every", "due"), [("128 tokens", {4, 6}), ("last_step", {7}), ("never", set[int]())]
)
def test_periods_count_from_the_start_of_the_run(tmp_path: Path, every: str, due: set[int]) -> None:
    watch = Watch()
    run(tmp_path, f"resilience.gc.every={every}", watch=watch, start=3)
    assert {step for step, seen in watch.by_step.items() if seen} == due
    assert gc.isenabled()


def test_given_back_after_errors(tmp_path: Path) -> None:
    """Of a step, and of another callback that cannot start."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "resilience.gc={}", watch=Watch(KeyboardInterrupt()))
    assert gc.isenabled()

    class Broken(Callback):
        phase = Phase.LAST

        def start(self, loop: Loop) -> None:
            assert not gc.isenabled()
            raise ValueError("broken")

    job = small_job(tmp_path, "resilience.gc={}")
    assert job.resilience.gc is not None
    callbacks = [CollectCallback(job.resilience.gc), Broken()]
    with pytest.raises(ValueError, match="broken"):
        loop_of(job, *callbacks).run()
    assert gc.isenabled()
