"""What torch.compile does is recorded and shown once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from setpoint.compile.watch import News
from setpoint.config import RunError
from setpoint.track.progress import Progress
from setpoint.train.callbacks.profile import CompileCallback


class Events:
    """Keeps events."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def write(self, event: str, **details: Any) -> None:
        self.seen.append({"event": event, **details})


class Notes(Progress):
    """Keeps notes."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def note(self, text: str) -> None:
        self.seen.append(text)


def at(step: int, seconds: float) -> Any:
    before = SimpleNamespace(step=step - 1, seconds=seconds - 2.0)
    return SimpleNamespace(previous=before, position=SimpleNamespace(step=step, seconds=seconds))


def callback(news: list[News], fails: bool = False) -> tuple[CompileCallback, Events, Notes]:
    watch: Any = SimpleNamespace(news=iter(news).__next__)
    events: Any = Events()
    notes = Notes()
    return CompileCallback(watch, events, notes, fails), events, notes


def test_the_first_update_and_later_ones() -> None:
    news = [
        News(graphs=2, seconds=1.25),
        News(),
        News(graphs=1, seconds=0.5, recompilations=("size",), fallbacks=("a graph ends",)),
        News(fallbacks=("the last evaluation",)),
    ]
    told, events, notes = callback(news)
    told.after_step(at(1, 2.0), None)  # pyright: ignore[reportArgumentType]
    told.after_step(at(2, 4.0), None)  # pyright: ignore[reportArgumentType]
    told.after_step(at(3, 6.0), None)  # pyright: ignore[reportArgumentType]
    told.finish(at(3, 6.0))
    first, second, last = events.seen
    assert first == {
        "event": "compile",
        "step": 1,
        "graphs": 2,
        "seconds": 1.25,
        "recompilations": [],
        "fallbacks": [],
        "first_step_seconds": 2.0,
    }
    assert (second["step"], second["recompilations"]) == (3, ["size"])
    assert "first_step_seconds" not in second
    assert last["fallbacks"] == ["the last evaluation"]
    assert notes.seen == [
        "compile: 2 graphs in 1.2 s (step 1)",
        "compile: 1 graph in 0.5 s, 1 of them anew (step 3)",
        "compile: a graph ends (step 3)",
        "compile: the last evaluation (step 3)",
    ]


def test_a_fallback_ends_the_run_and_is_recorded() -> None:
    told, events, _ = callback([News(graphs=1, fallbacks=("one", "two"))], fails=True)
    with pytest.raises(RunError, match="step 4: compile.fallback = fail: one\ntwo"):
        told.after_step(at(4, 2.0), None)  # pyright: ignore[reportArgumentType]
    assert len(events.seen) == 1


def test_recompilations_alone_do_not_end_it() -> None:
    told, _, _ = callback([News(graphs=1, recompilations=("size",))], fails=True)
    told.after_step(at(4, 2.0), None)  # pyright: ignore[reportArgumentType]


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
        assert notes.seen[0] == "compile: kept/job.bin is damaged, and is written anew"
        full = "compile: the artifacts kept/job.bin cannot be written: No space left on device"
        assert notes.seen.count(full) == writes
