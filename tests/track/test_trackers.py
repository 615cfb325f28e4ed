"""All trackers of a run as one: what a checkpoint keeps of each, and what a session opens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from setpoint.config import RUNTIME, RunError, resolve
from setpoint.config.composition import compose
from setpoint.config.resolving.checks import verify
from setpoint.track.config import Jsonl, TrackerConfig, Tracking
from setpoint.track.run_directory import RunDirectory
from setpoint.track.trackers import Background, RunFacts, Tracker, Trackers, _driven

from ..support.snapshots import refused
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
    assert first == {"jsonl": {"offset": length}, "counting-of-a-test": {"count": 2}}
    second = session(tmp_path, 2, first, Jsonl, Counting.Config, Counting.Config)
    assert Counting.opened == [(0, {}), (2, {"count": 2}), (2, {})]
    del second["jsonl"]
    assert second == {"counting-of-a-test": {"count": 4}, "counting-of-a-test.1": {"count": 2}}


def test_states_of_trackers_that_are_away_are_kept(tmp_path: Path) -> None:
    first = session(tmp_path, 0, {}, Jsonl, Counting.Config)
    assert session(tmp_path, 2, first) == first
    assert session(tmp_path, 2, {}) == {}


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


def test_a_tracker_without_write_is_refused_at_the_start(tmp_path: Path) -> None:
    with refused():
        session(tmp_path / "run", 0, {}, Mute.Config)


# A tracker that another thread feeds: whatever it does, the run goes on, and hears of it.


class Keeping(Tracker):
    """Keeps what it gets; waits and fails as it is told."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.may_write = threading.Event()
        self.may_write.set()
        self.refusing: set[int] = set()
        self.unopened: BaseException | None = None

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        if self.unopened is not None:
            raise self.unopened
        self.got.append(("open", step, dict(state)))

    def rewind(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        self.got.append(("rewind", step))

    def write(self, row: dict[str, Any]) -> None:
        self.may_write.wait()
        if row["step"] in self.refusing:
            raise ConnectionError("no route to host\nand more lines")
        self.got.append(row["step"])

    def close(self) -> None:
        self.got.append("close")


def opened(inner: Keeping, **options: Any) -> tuple[Background, list[str]]:
    """A tracker whose thread runs, and the lines it shows."""
    lines: list[str] = []
    tracker = Background("some", inner, **options)
    tracker.describe(FACTS)
    tracker.open(3, {}, lines.append)
    return tracker, lines


@pytest.mark.parametrize("name", ["0" * 32, "f" * 32], ids=["new", "of the first session"])
def test_everything_arrives_in_order_under_one_name(name: str) -> None:
    inner, lines = Keeping(), list[str]()
    tracker = Background("some", inner)
    tracker.describe(FACTS)
    tracker.open(3, {} if name == FACTS.run_id else {"id": name}, lines.append)
    tracker.write({"step": 4})
    tracker.rewind(3, {}, lines.append)
    tracker.write({"step": 4})
    tracker.close()
    assert inner.got == [("open", 3, {"id": name}), 4, ("rewind", 3), 4, "close"]
    assert lines == [] and tracker.state_dict() == {"id": name}


def test_a_tracker_that_hangs_does_not_delay_training() -> None:
    inner = Keeping()
    inner.may_write.clear()
    tracker, lines = opened(inner, limit=5, patience=0.2)
    while tracker._worker and tracker._worker.waiting:  # until it has been opened
        time.sleep(0.001)
    for step in range(4, 24):
        tracker.write({"step": step})
    # One row is with the tracker, if its thread was fast, and five wait.
    assert tracker.dropped in (14, 15)
    tracker.close()
    assert lines[0] == "tracker some is slow: 5 rows are waiting, and further ones are dropped"
    assert lines[1].startswith("tracker some did not receive its rows within 0.2 s: ")
    assert lines[2] == f"tracker some lost {tracker.dropped} rows of this session"
    inner.may_write.set()


def test_rows_that_a_tracker_refuses_are_counted() -> None:
    inner = Keeping()
    inner.refusing = {5, 6}
    tracker, lines = opened(inner)
    for step in (4, 5, 6, 7):
        tracker.write({"step": step})
    tracker.close()
    assert [each for each in inner.got if isinstance(each, int)] == [4, 7]
    assert lines == [
        "tracker some failed: ConnectionError: no route to host; training goes on",
        "tracker some lost 2 rows of this session",
    ]


def test_a_tracker_that_cannot_be_opened_is_off() -> None:
    for error, reason in (
        (SystemExit("not logged in"), "SystemExit: not logged in"),
        (ImportError("libfoo.so"), "ImportError: libfoo.so"),
    ):
        inner = Keeping()
        inner.unopened = error
        tracker, lines = opened(inner)
        while not tracker._off:
            time.sleep(0.001)
        tracker.write({"step": 4})
        tracker.close()
        assert inner.got == []
        said = f"tracker some is off in this session: {reason}; training goes on"
        assert lines == [said, "tracker some lost 1 rows of this session"]


def test_which_trackers_are_driven_by_a_thread() -> None:
    """All but those that checkpoints count on, unless the class says otherwise."""

    class Exact(Keeping):
        def state_dict(self) -> dict[str, Any]:
            return {"rows": len(self.got)}

    class Said(Keeping):
        synchronous = True

    class Freed(Exact):
        synchronous = False

    inner = Keeping()
    driven = _driven("some", TrackerConfig(), inner)
    assert isinstance(driven, Background) and driven.inner is inner
    assert isinstance(_driven("freed", TrackerConfig(), Freed()), Background)
    for tracker in (Exact(), Said(), driven):
        assert _driven("some", TrackerConfig(), tracker) is tracker


@pytest.mark.parametrize("answers", [True, False])
def test_a_required_tracker_that_cannot_be_opened_fails_the_run(answers: bool) -> None:
    inner, held = Keeping(), threading.Event()
    inner.unopened = SystemExit("log in first")
    if not answers:
        inner.open = lambda *_: held.wait()  # type: ignore[method-assign,assignment]
    lines: list[str] = []
    tracker = Background("some", inner, patience=60.0 if answers else 0.1, required=True)
    tracker.describe(FACTS)
    with refused(RunError):
        tracker.open(3, {}, lines.append)
    tracker.close()
    held.set()
    assert lines == [] and inner.got == []
    opened(Keeping(), required=True)[0].close()


def test_two_writers_of_one_file_are_refused() -> None:
    section = Tracking(trackers=(Jsonl(), Jsonl()))
    with refused():
        resolve(section)
    assert resolve(Tracking(trackers=())).trackers == ()


def test_trackers_that_leave_metrics_jsonl_out_are_cautioned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = TrackerConfig.__setpoint__
    monkeypatch.setattr(family, "variants", dict(family.variants))

    class Own(TrackerConfig, type="own_tracker"):
        pass

    def cautions(*trackers: TrackerConfig) -> list[str]:
        return [each.code for each in verify(resolve(Tracking(trackers=trackers))).cautions]

    assert cautions(Own()) == ["no-metrics-file"]
    assert cautions(Own(), Jsonl()) == cautions() == []
    section = resolve(Tracking(trackers=(Own(),)))
    (caution,) = verify(section).cautions
    typed = caution.hint.partition("with --tracking.")[2].rstrip(".").split()
    composed = compose(Tracking, section, flags=[f"--{typed[0]}", typed[1]]).resolve()
    assert [type(each) for each in composed.trackers] == [Own, Jsonl]
