"""Goodput: each second of a record is in the part that it belongs to."""

from typing import Any

import pytest

from setpoint.report.goodput import Goodput, dropped, goodput


def at(seconds: float) -> str:
    minute, second = divmod(seconds, 60)
    return f"2026-01-01T00:{minute:02.0f}:{second:06.3f}Z"


def train(time: float, step: int, seconds: float, wait: float = 0.0) -> dict[str, Any]:
    return {"kind": "train", "time": at(time), "step": step, "seconds": seconds, "data_wait": wait}


def evaluation(time: float, step: int, seconds: float) -> dict[str, Any]:
    return {"kind": "evaluation", "time": at(time), "step": step, "evaluation_seconds": seconds}


def event(time: float, name: str, step: int, seconds: float | None = None, **more: Any) -> Any:
    more |= {} if seconds is None else {"seconds": seconds}
    return {"time": at(time), "event": name, "step": step, **more}


# Starts in 10 s, trains 30 steps of 1 s, an evaluation of 4 s at 10 and a save of 2 s at 20 between
# them, and is killed. A row is there every 10 steps.
FIRST = [event(10, "start", 0, 0.0, began=at(0)), event(36, "save", 20, 2.0)]
FIRST_ROWS = [train(20, 10, 10.0, 0.1), evaluation(24, 10, 4.0), train(34, 20, 20.0, 0.2)]
LOST_ROWS = [train(46, 30, 30.0), evaluation(50, 30, 4.0)]
# Starts again a minute after the last row, in 5 s, and fails after 7 s of 7 steps, without a row.
SECOND = [
    event(115, "resume", 20, 20.0, began=at(110), dropped=dropped(FIRST, LOST_ROWS, 20, 20.0)),
    event(122, "fault", 27, 27.0),
]
# At once again: 20 steps more, 1 s of which nothing tells; a rollback from 45 to 40 in between.
THIRD = [
    event(127, "resume", 20, 20.0, began=at(122), dropped=dropped([*FIRST, *SECOND], [], 20, 20.0)),
    event(147, "save", 40, 0.0),
    event(152, "rollback", 40, 40.0, dropped=dropped([], [], 40, 40.0, reached=(45, 45.0))),
    event(163, "end", 50, 50.0, status=0),
]
THIRD_ROWS = [train(137, 30, 30.0), train(147, 40, 40.0), train(163, 50, 50.0, 0.5)]
# An hour later it is found to be finished, which is not a loss.
FOURTH = [event(190, "resume", 50, 50.0, began=at(180)), event(191, "end", 50, 50.0, status=0)]

WHOLE = Goodput(
    wall=163.0,
    trained=42.0,
    waiting=8.0,
    lost=10.0 + 4.0 + 7.0 + 5.0,
    starting=10.0 + 5.0 + 5.0,
    saving=2.0,
    evaluating=4.0,
    idle=60.0,
    other=1.0,
    sessions=3,
    lost_steps=10 + 7 + 5,
)


def test_a_record_with_a_known_answer() -> None:
    rows = [*FIRST_ROWS, *THIRD_ROWS]
    found = goodput([*FIRST, *SECOND, *THIRD, *FOURTH], rows)
    assert found == WHOLE
    # Neither a session that found the run finished nor a command between sessions is a part.
    assert goodput([*FIRST, *SECOND, *THIRD], rows) == WHOLE
    assert goodput([*FIRST, *SECOND, *THIRD, event(170, "prune", 50), *FOURTH], rows) == WHOLE
    assert sum(found.parts.values()) == found.wall and found.share == 42 / 163
    assert list(found.parts)[:2] == ["idle", "trained"]
    assert found.line().startswith("idle 37%, trained 26%, lost 16%")


def test_a_run_that_is_trained_further_was_not_idle_while_it_was_finished() -> None:
    further = [
        event(603, "resume", 50, 50.0, began=at(600)),
        event(613, "end", 60, 60.0, status=75),
    ]
    found = goodput([*FIRST, *SECOND, *THIRD, *FOURTH, *further], [*FIRST_ROWS, *THIRD_ROWS])
    assert (found.wall, found.idle, found.sessions) == (163 + 13, 60, 4)
    assert found.trained == 52.0


def test_a_session_that_is_under_way_ends_with_its_last_row() -> None:
    found = goodput(FIRST, [*FIRST_ROWS, *LOST_ROWS])
    assert (found.wall, found.trained, found.lost) == (50.0, 25.0 + 2.0, 0.0)
    assert goodput([], []).share is None


def test_clocks_that_jump_make_no_part_negative() -> None:
    jumped = [{**row, "time": at(1)} for row in [*FIRST, *SECOND, *THIRD]]
    found = goodput(jumped, [*FIRST_ROWS, *THIRD_ROWS])
    assert all(seconds >= 0 for seconds in found.parts.values())
    assert sum(found.parts.values()) == pytest.approx(found.wall)


def test_values_of_other_types_are_no_error() -> None:
    odd: list[Any] = ["x", [], {}, -1, 1e400, None, {"time": "x", "seconds": "y"}]
    for value in odd:
        events = [{**row, "dropped": value, "seconds": value, "step": value} for row in THIRD]
        rows = [{**row, "time": value, "step": value, "data_wait": value} for row in THIRD_ROWS]
        found = goodput(events, rows)
        assert found.wall >= 0 and sum(found.parts.values()) == pytest.approx(found.wall)
