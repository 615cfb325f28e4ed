"""All trackers of a run as one: what a checkpoint keeps of each, and what a session opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from setpoint.config import RUNTIME, SetpointError, resolve
from setpoint.track.config import Jsonl, TrackerConfig, Tracking
from setpoint.track.run_directory import RunDirectory
from setpoint.track.trackers import RunFacts, Tracker, Trackers

from ..support.variants import forget, known


class Counting(Tracker):
    class Config(TrackerConfig, type="counting-of-a-test", role=RUNTIME):
        pass

    opened: ClassVar[list[tuple[int, dict[str, Any]]]] = []

    def __init__(self, config: Counting.Config, *, run_directory: RunDirectory) -> None:
        self.count = 0

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        self.opened.append((step, dict(state)))
        self.count = state.get("count", 0)

    def write(self, row: dict[str, Any]) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}


class Mute:
    class Config(TrackerConfig, type="mute-of-a-test", role=RUNTIME):
        pass

    def __init__(self, config: Mute.Config, *, run_directory: RunDirectory) -> None:
        pass


FACTS = RunFacts("0" * 32, "tiny-1234", None, "1234", {}, {}, {})
OWN = forget(TrackerConfig, __name__)


@pytest.fixture(autouse=True)
def own() -> Iterator[None]:
    Counting.opened.clear()
    with known(TrackerConfig, OWN):
        yield


def session(path: Path, step: int, saved: dict[str, Any], *kinds: type[TrackerConfig]) -> Any:
    """The state after a session of two rows that goes on at a step."""
    sections = resolve(Tracking(trackers=tuple(kind() for kind in kinds))).trackers
    trackers = Trackers()
    trackers.load_state_dict(saved)
    with RunDirectory.create(path) as run:
        trackers.build(sections, run)
        trackers.open(FACTS, step, lambda _: None)
        for number in (1, 2):
            trackers.write({"step": step + number})
        trackers.flush()
        trackers.close()
    return trackers.state_dict()


def test_each_goes_on_with_its_own_state(tmp_path: Path) -> None:
    first = session(tmp_path, 0, {}, Jsonl, Counting.Config)
    length = (tmp_path / "metrics.jsonl").stat().st_size
    assert first == {
        "metrics_offset": length,
        "trackers": {"counting-of-a-test": {"count": 2}},
    }
    second = session(tmp_path, 2, first, Jsonl, Counting.Config, Counting.Config)
    assert Counting.opened == [(0, {}), (2, {"count": 2}), (2, {})]
    assert second["trackers"] == {
        "counting-of-a-test": {"count": 4},
        "counting-of-a-test.1": {"count": 2},
    }


def test_states_of_trackers_that_are_away_are_kept(tmp_path: Path) -> None:
    first = session(tmp_path, 0, {}, Jsonl, Counting.Config)
    assert session(tmp_path, 2, first) == first
    assert session(tmp_path, 2, {}) == {"metrics_offset": 0}


def test_all_are_closed_whatever_one_raises(tmp_path: Path) -> None:
    closed: list[str] = []

    class Failing(Tracker):
        def write(self, row: dict[str, Any]) -> None: ...

        def close(self) -> None:
            closed.append("failing")
            raise OSError("full")

    trackers = Trackers()
    for name in ("a", "b"):
        trackers.built[name] = Failing()
    with pytest.raises(OSError, match="full"):
        trackers.close()
    assert closed == ["failing"] * 2


def test_what_takes_no_rows_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SetpointError, match=r"Mute \(type = mute-of-a-test\) has no write"):
        session(tmp_path / "run", 0, {}, Mute.Config)
