"""Worker processes of data preparation, which receive pickled tasks on standard input.

`multiprocessing` would rerun the user's script in each process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from setpoint.config import SetpointError

if TYPE_CHECKING:
    from setpoint.data.tokenizer import Tokenizer


WORKER = "from setpoint.data.workers import main; main()"
ONE_CORE = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
"""One core per process: threads of libraries would compete."""


class WorkerTask(Protocol):
    """A picklable task."""

    def run(self, tokenizer: Tokenizer) -> Any:
        """Run the task."""
        ...


def _send(stream: IO[bytes], value: object) -> None:
    # Pickled straight into the stream, without a copy in memory.
    pickle.dump(value, stream, protocol=5)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    try:
        return pickle.load(stream)
    except pickle.UnpicklingError as error:  # truncated: the sender has died
        raise EOFError from error


class Workers:
    """Pool of processes, or only this process if `count` is 1; a context manager.

    Arguments:
        count: number of processes.
    """

    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        self.tokenizer = tokenizer
        # A class of the user's script cannot be imported elsewhere.
        movable = type(tokenizer).__module__ != "__main__"
        self.count = count if movable else 1
        self._local = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pool = ThreadPoolExecutor(self.count) if self.count > 1 else None
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        if self._pool is None:
            self._before = {name: os.environ.get(name) for name in ONE_CORE}
            os.environ.update(ONE_CORE)
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if self._pool is None:
            for name, value in self._before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            return
        if error is not None:
            for process in self._processes:
                process.kill()
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            if error is not None:
                process.kill()  # one that was started meanwhile
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # what was not sent yet
                        stream.close()
            process.wait()

    def run(self, works: Iterable[WorkerTask]) -> Iterator[tuple[WorkerTask, Any]]:
        """Run tasks concurrently; yield them with their results, in order.

        At most two tasks per process are in memory.

        Raises:
            SetpointError: a task failed, or a process was killed.
            OSError: a task failed.
        """
        if self._pool is None:
            for work in works:
                yield work, work.run(self.tokenizer)
            return
        waiting: list[tuple[WorkerTask, Future[Any]]] = []
        for work in works:
            waiting.append((work, self._pool.submit(self._ask, work)))
            while len(waiting) > 2 * self.count or (waiting and waiting[0][1].done()):
                first, future = waiting.pop(0)
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()

    def _ask(self, work: WorkerTask) -> Any:
        process: subprocess.Popen[bytes] | None = getattr(self._local, "process", None)
        if process is None:
            process = self._local.process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, work)
            kind, value = _receive(process.stdout)
        except (EOFError, BrokenPipeError):
            code = process.wait()
            end = f"signal {-code}" if code < 0 else f"exit status {code}"
            raise SetpointError(
                f"data.prepare: a worker process ended with {end}, as when the machine runs out "
                f"of memory.\n"
                "Valid: a smaller data.prepare.workers; finished pieces are kept."
            ) from None
        if kind == "error":
            raise value
        return value

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment |= ONE_CORE
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._processes.append(process)
        assert process.stdin is not None
        _send(process.stdin, self.tokenizer)
        return process


def main() -> None:
    """Run tasks until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with results
    stream = sys.stdin.buffer
    try:
        tokenizer = _receive(stream)
        while True:
            work = _receive(stream)
            try:
                answer = "done", work.run(tokenizer)
            except (SetpointError, OSError) as error:
                answer = "error", error
            _send(answers, answer)
    except (EOFError, BrokenPipeError):
        return
