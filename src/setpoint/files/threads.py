"""Threads: one that works while the run goes on, and several for one piece of work."""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")

THREADS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)
"""That share a piece of work: copies of memory and digests, which leave the interpreter lock."""


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


class Worker:
    """One thread, which a process that ends does not wait for.

    Executors of the standard library are waited for at the end of the process, which a disk that
    does not answer would keep for ever.

    Arguments:
        name: of the thread, as debuggers show it.
    """

    def __init__(self, name: str) -> None:
        self._given: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._last: Future[Any] | None = None
        _made.add(self)

    @property
    def is_busy(self) -> bool:
        """Whether it has not done all that it was given."""
        return self._last is not None and not self._last.done()

    def submit(self, act: Callable[[], T]) -> Future[T]:
        """Let the thread do something after what it was given before.

        Where the system allows no further thread, it is done when this returns.

        Returns:
            what comes of it.
        """
        self._last = future = Future[T]()
        self._given.put((future, act))
        if not self._thread.is_alive():
            try:
                self._thread.start()
            except RuntimeError:
                self.end()
                self._run()
        return future

    def end(self) -> None:
        """Let the thread end after what it was given; nothing waits for it."""
        self._given.put(None)

    def _run(self) -> None:
        while (given := self._given.get()) is not None:
            future, act = given
            try:
                future.set_result(act())
            except BaseException as error:
                future.set_exception(error)
            # Nothing of a save, such as its copies of tensors, is kept until the next one.
            del given, future, act


_made: WeakSet[Worker] = WeakSet()


def is_any_busy() -> bool:
    """Whether a thread does something that nothing waits for any more, as a process ends.

    When Python exits it ends such a thread at its next line: within a library of C++, which waits
    for another rank, say, that aborts the process.
    """
    return any(each.is_busy for each in _made)
