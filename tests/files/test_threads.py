"""Threads for calls at an interval and for queues of tasks."""

import threading
from itertools import count
from unittest.mock import MagicMock

import pytest

from setpoint.files import threads
from setpoint.files.threads import Periodic, Worker, in_threads

SECONDS = 10.0


def test_calls_come_at_an_interval_until_the_end() -> None:
    calls, bound, enough = count(1), threading.Event(), threading.Event()

    def act() -> None:
        assert bound.wait(SECONDS)
        if next(calls) == 3:
            enough.set()
            periodic.end()  # from within, where nothing waits for itself

    with Periodic(lambda: 0.001, act, "often", at_once=True) as periodic:
        bound.set()
        assert enough.wait(SECONDS)
    assert next(calls) == 4
    with Periodic(SECONDS, act, "never"):
        pass
    assert next(calls) == 5


def test_tasks_are_done_in_order_and_waited_for() -> None:
    worker, gate, done = Worker("tasks"), threading.Event(), list[int]()
    worker.submit(lambda: gate.wait(SECONDS))
    results = [worker.submit(lambda n=number: done.append(n)) for number in range(3)]
    assert worker.is_busy and worker.waiting >= 2
    assert not worker.end(0.01)
    gate.set()
    assert worker.end(SECONDS) and not worker.is_busy
    assert done == [0, 1, 2] and all(future.done() for future in results)
    assert Worker("idle").end(SECONDS)


def test_work_is_shared_by_threads() -> None:
    done: list[int] = []
    in_threads(done.append, 1000)
    assert sorted(done) == list(range(1000))

    def act(number: int) -> None:
        done.append(number)
        if number == 5:
            raise OSError(5, "Input/output error")

    done.clear()
    with pytest.raises(OSError, match="Input/output"):
        in_threads(act, 100_000)
    assert 5 in done and len(done) < 100_000


@pytest.mark.parametrize("error", [None, RuntimeError("can't start new thread")])
def test_work_is_done_where_no_thread_gets_to_its_first_line(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError | None
) -> None:
    """As where memory has run out: one that dies on its way says nothing to who has started it."""
    start = MagicMock(side_effect=error)
    monkeypatch.setattr(threads, "THREADS", 3)
    monkeypatch.setattr(threads, "start_new_thread", start)
    done: list[int] = []
    in_threads(done.append, 10)
    assert done == list(range(10)) and start.called


def test_what_a_thread_is_to_do_is_done_where_none_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = MagicMock(side_effect=[RuntimeError("can't start new thread")] * 2)
    thread = threads.Worker("some")
    monkeypatch.setattr(thread._thread, "start", start)
    assert thread.submit(lambda: 3).done() and not thread.is_busy
    error = thread.submit(lambda: 1 // 0).exception(0)
    assert isinstance(error, ZeroDivisionError) and start.call_count == 2
    thread.end()
