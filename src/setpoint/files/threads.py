"""Threads: a queue of work, a call at an interval, and several threads for one piece of work."""

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
"""Number of threads for one piece of work: copies and digests, which release the GIL."""


def in_threads(act: Callable[[int], object], count: int) -> None:
    """Do something `count` times, by this thread and others, each taking the next number.

    None of them waits for another but at the end, so that a busy machine costs little. Threads that
    cannot be started, or die of too little memory before their first line, are done without:
    `Thread.start` would wait for the latter for ever.

    Arguments:
        act: takes the number, from 0 on; once it has raised an error nothing more is begun.
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
    """Call a function at an interval in a daemon thread, whatever the main thread does.

    Arguments:
        every: seconds between two calls; a function is asked again after each.
        act: what it raises ends the thread.
        name: of the thread, as debuggers show it.
        at_once: whether the first call comes before the first interval.
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
        """Call it no more, and wait for a call in progress, unless this is called from within."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not current_thread():
            self._thread.join()

    def _run(self) -> None:
        if self.at_once:
            self.act()
        while not self._ended.wait(self.every() if callable(self.every) else self.every):
            self.act()


class Worker:
    """A queue of tasks for one thread, which a process that ends does not wait for.

    Executors of the standard library are waited for at the end of the process, which a disk that
    does not answer would keep for ever.

    Arguments:
        name: of the thread, as debuggers show it.
    """

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._starting = Lock()
        self._last: Future[Any] | None = None
        _made.add(self)

    @property
    def is_busy(self) -> bool:
        """True if a task is not done yet."""
        return self._last is not None and not self._last.done()

    @property
    def waiting(self) -> int:
        """Number of tasks that the thread has not taken yet."""
        return self._tasks.qsize()

    def submit(self, act: Callable[[], T]) -> Future[T]:
        """Let the thread do something after what it was given before.

        Where the system allows no further thread, it is done when this returns.

        Returns:
            its result.
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
        """Let the thread end after its tasks.

        Arguments:
            patience: seconds to wait for that; None: nothing waits.

        Returns:
            True if it has ended, or never begun.
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


_made: WeakSet[Worker] = WeakSet()


def is_any_busy() -> bool:
    """True if a thread does something that nothing waits for any more, as a process ends.

    When Python exits it ends such a thread at its next line: within a library of C++, which waits
    for another rank, say, that aborts the process.
    """
    return any(worker.is_busy for worker in _made)
