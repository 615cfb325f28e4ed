"""Threads: a task queue, periodic calls, and parallel loops."""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread, current_thread
from typing import Any, Self, TypeVar
from weakref import WeakSet

T = TypeVar("T")

THREADS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)
"""Number of threads of a parallel loop of copies or digests, which release the GIL."""


def in_threads(act: Callable[[int], object], count: int) -> None:
    """Call a function `count` times in this thread and others, each time with the next number.

    Threads wait for each other only at the end. The work continues without threads that cannot be
    started or run out of memory before their first line; `Thread.start` would wait forever for the
    latter.

    Arguments:
        act: called with a number from 0; after an error, no further calls begin.
    """
    numbers, failed = iter(range(count)), list[BaseException]()

    def work() -> None:
        try:
            for number in numbers:
                if failed:
                    return
                act(number)
        except BaseException as error:
            failed.append(error)

    def help_out(busy: LockType) -> None:
        with busy:
            work()

    helpers = [allocate_lock() for _ in range(min(THREADS, count) - 1)]
    with suppress(RuntimeError):
        for busy in helpers:
            start_new_thread(help_out, (busy,))
    work()
    for busy in helpers:
        # One that has not got hold of it by now finds no number left.
        with busy:
            pass
    if failed:
        raise failed[0]


class Periodic:
    """Calls a function periodically in a daemon thread.

    Arguments:
        every: seconds between calls, or a function that returns them.
        act: the function; an exception ends the thread.
        name: name of the thread, as shown in debuggers.
        at_once: whether to make the first call before the first interval.
    """

    def __init__(
        self,
        every: float | Callable[[], float],
        act: Callable[[], object],
        name: str,
        at_once: bool = False,
    ) -> None:
        self.every, self.act, self.at_once = every, act, at_once
        self._ended = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Stop, and wait for a call in progress unless called from within it."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not current_thread():
            self._thread.join()

    def _run(self) -> None:
        if self.at_once:
            self.act()
        while not self._ended.wait(self.every() if callable(self.every) else self.every):
            self.act()


class Worker:
    """A task queue with a daemon thread.

    Executors of the standard library are joined when the process exits, which would hang if a disk
    does not respond.

    Arguments:
        name: name of the thread, as shown in debuggers.
    """

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._starting = Lock()
        self._last: Future[Any] | None = None
        _workers.add(self)

    @property
    def is_busy(self) -> bool:
        """True while a task is pending."""
        return self._last is not None and not self._last.done()

    @property
    def waiting(self) -> int:
        """Number of tasks in the queue."""
        return self._tasks.qsize()

    def submit(self, act: Callable[[], T]) -> Future[T]:
        """Queue a task; if no thread can be started, the task is done before this returns.

        Returns:
            its future result.
        """
        self._last = future = Future[T]()
        self._tasks.put((future, act))
        with self._starting:
            if not self._thread.is_alive():
                try:
                    self._thread.start()
                except RuntimeError:
                    self.end()
                    self._run()
        return future

    def end(self, patience: float | None = None) -> bool:
        """End the thread after its tasks.

        Arguments:
            patience: seconds to wait for the end; None: do not wait.

        Returns:
            True if the thread has ended or was never started.
        """
        self._tasks.put(None)
        if patience is not None and self._thread.is_alive():
            self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, act = task
            try:
                future.set_result(act())
            except BaseException as error:
                future.set_exception(error)
            # Nothing of a save, such as its copies of tensors, is kept until the next one.
            del task, future, act


_workers: WeakSet[Worker] = WeakSet()


def is_any_busy() -> bool:
    """True if a worker is busy when the process exits.

    Python stops such a thread at its next line; inside a C++ library, for example while waiting for
    another rank, that aborts the process.
    """
    return any(worker.is_busy for worker in _workers)
