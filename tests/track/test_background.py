"""A tracker that another thread feeds: whatever it does, the run goes on, and hears of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from setpoint.config import RunError
from setpoint.track.trackers import Background, RunFacts, Tracker, _driven

FACTS = RunFacts("0" * 32, "tiny-1234", None, "12345678", {}, {}, {})


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


def test_everything_arrives_in_order() -> None:
    inner = Keeping()
    tracker, lines = opened(inner)
    tracker.write({"step": 4})
    tracker.rewind(3, {}, lines.append)
    tracker.write({"step": 4})
    tracker.close()
    assert inner.got == [("open", 3, {"id": "0" * 32}), 4, ("rewind", 3), 4, "close"]
    assert lines == [] and tracker.state_dict() == {"id": "0" * 32}


def test_the_run_keeps_the_name_of_its_first_session() -> None:
    inner, lines = Keeping(), list[str]()
    tracker = Background("some", inner)
    tracker.describe(FACTS)
    tracker.open(3, {"id": "f" * 32}, lines.append)
    tracker.close()
    assert inner.got[0] == ("open", 3, {"id": "f" * 32})
    assert tracker.state_dict() == {"id": "f" * 32}


def test_one_that_hangs_holds_nothing_up() -> None:
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
    assert lines[0] == "tracker some is slow: 5 rows wait, and further ones are dropped"
    assert lines[1].startswith("tracker some did not take its rows within 0.2 s: ")
    assert lines[2] == f"tracker some has lost {tracker.dropped} rows of this session"
    inner.may_write.set()


def test_rows_that_it_refuses_are_counted() -> None:
    inner = Keeping()
    inner.refusing = {5, 6}
    tracker, lines = opened(inner)
    for step in (4, 5, 6, 7):
        tracker.write({"step": step})
    tracker.close()
    assert [each for each in inner.got if isinstance(each, int)] == [4, 7]
    assert lines == [
        "tracker some failed: ConnectionError: no route to host; training goes on",
        "tracker some has lost 2 rows of this session",
    ]


def test_one_that_cannot_be_opened_is_off() -> None:
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
        assert lines == [said, "tracker some has lost 1 rows of this session"]


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
    driven = _driven("some", inner)
    assert isinstance(driven, Background) and driven.inner is inner
    assert isinstance(_driven("freed", Freed()), Background)
    for tracker in (Exact(), Said(), driven):
        assert _driven("some", tracker) is tracker


@pytest.mark.parametrize("answers", [True, False])
def test_one_that_is_required_fails_the_run_where_it_cannot_be_opened(answers: bool) -> None:
    inner, held = Keeping(), threading.Event()
    inner.unopened = SystemExit("log in first")
    if not answers:
        inner.open = lambda *_: held.wait()  # type: ignore[method-assign,assignment]
    said = "SystemExit: log in first" if answers else "no answer within patience = 0.1 s"
    lines: list[str] = []
    tracker = Background("some", inner, patience=60.0 if answers else 0.1, required=True)
    tracker.describe(FACTS)
    with pytest.raises(RunError, match=f"tracker some is required and cannot be opened: {said}"):
        tracker.open(3, {}, lines.append)
    tracker.close()
    held.set()
    assert lines == [] and inner.got == []
    opened(Keeping(), required=True)[0].close()
