"""When steps that wait for their data are warned of."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from setpoint.config import resolve
from setpoint.data.config import Loader
from setpoint.data.loader import Spent
from setpoint.ops.slow_steps import SECONDS, STEPS, DataWaitCallback
from setpoint.track.progress import Progress
from setpoint.train.loop import Loop
from setpoint.train.position import Position
from setpoint.train.run import train

from ..train.small import small_job


class Heard(Progress):
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.notes: list[str] = []

    def write(self, event: str, **facts: Any) -> None:
        self.events.append((event, facts))

    def note(self, text: str) -> None:
        self.notes.append(text)


class Steps:
    """A loop, as far as the callback sees it, whose steps take as long as is said."""

    def __init__(self, workers: int = 0) -> None:
        self.stepping = self.waited = 0.0
        self.position = Position()
        self.spent = Spent()
        self.components = SimpleNamespace(feed=SimpleNamespace(spent=self.spent))
        self.heard = Heard()
        section = resolve(Loader(workers=workers))
        self.callback = DataWaitCallback()
        self.callback.section = section
        self.callback.events, self.callback.note = cast(Any, self.heard), self.heard.note

    def take(
        self,
        count: int,
        seconds: float,
        waited: float,
        making: float | None = None,
        planning: float = 0.0,
    ) -> None:
        for _ in range(count):
            is_first = not self.position.step
            self.spent.batches += 1
            self.spent.making += waited if making is None else making
            self.spent.planning += planning
            self.stepping += seconds
            self.waited += waited
            self.position = Position(step=self.position.step + 1)
            call = self.callback.after_first_step if is_first else self.callback.after_step
            call(cast(Loop, self), cast(Any, None))


def test_a_stretch_that_waits_is_warned_of_once_and_recorded_each_time() -> None:
    steps = Steps()
    steps.take(1, 30.0, 29.0)  # the first one starts the workers
    steps.take(2 * STEPS, 1.0, 0.25)
    facts = {"steps": STEPS, "share": 0.25, "batches": STEPS, "planning": 0.0, "making": 5.0}
    assert steps.heard.events == [
        ("data_wait", {"step": 1 + STEPS, **facts}),
        ("data_wait", {"step": 1 + 2 * STEPS, **facts}),
    ]
    assert steps.heard.notes == [
        f"step {1 + STEPS}: 25% of the last {STEPS} steps were spent waiting for data; "
        "building a micro-batch takes 250 ms and computing it 750 ms: raise data.loader.workers "
        "from "
        "0 to 1"
    ]


@pytest.mark.parametrize(
    ("workers", "spent", "words"),
    [
        # (seconds of a step, of waiting, of making, of planning)
        (2, (1.0, 0.4, 1.5, 0.0), "computing it 600 ms: raise data.loader.workers from 2 to 3"),
        (2, (1.0, 0.1, 0.5, 0.0), "500 ms, sometimes more: raise data.loader.prefetch from 2"),
        (2, (1.0, 0.9, 0.95, 0.0), "workers from 2 to 10 (there are 4 cores: more help only"),
        (0, (0.5, 0.03, 5e-4, 0.0), "0.5 ms, less than taking it from a worker would: raise batch"),
        (1, (0.5, 0.03, 5e-3, 0.0), "5 ms, less than taking it from a worker: set data.loader.w"),
        (0, (1.0, 0.5, 0.1, 0.4), "0.4 s of each micro-batch went into selecting its rows"),
    ],
)
def test_the_advice_is_by_what_was_measured(
    workers: int, spent: tuple[float, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    steps = Steps(workers)
    steps.take(1 + STEPS, *spent)
    (line,) = steps.heard.notes
    assert words in line


def test_short_waits_and_short_stretches_cause_no_warning() -> None:
    steps = Steps()
    steps.take(1 + 10 * STEPS, 1.0, 0.049)
    assert not steps.heard.events
    steps = Steps()
    steps.take(1 + STEPS, 0.9 * SECONDS / STEPS, 0.1)
    assert not steps.heard.events


def test_rows_hold_the_share(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=3 steps", "evaluation=null")).directory
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(found) == 3 and all(0 < row["data_wait"] < 1 for row in found)
