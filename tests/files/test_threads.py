"""Threads for calls at an interval and for queues of tasks."""

from __future__ import annotations

import threading
from itertools import count

from setpoint.files.threads import Periodic, Worker

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
