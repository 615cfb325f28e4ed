"""A thread that does what it is given, one piece after the other, while the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """One thread, which a process that ends does not wait for.

    Executors of the standard library are waited for at the end of the process, which a disk that
    does not answer would keep for ever.

    Arguments:
        name: of the thread, as debuggers show it.
    """

    def __init__(self, name: str) -> None:
        self._given: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def submit(self, act: Callable[[], T]) -> Future[T]:
        """Let the thread do something after what it was given before.

        Returns:
            what comes of it.
        """
        if not self._thread.is_alive():
            self._thread.start()
        future: Future[T] = Future()
        self._given.put((future, act))
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
