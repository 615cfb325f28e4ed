"""Worker processes that make the rows which the main process names, in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from setpoint.config import RunError, SetpointError
from setpoint.data.sequences import Rows
from setpoint.data.sharing import Shared
from setpoint.shapes.batch import TENSORS, Batch, Lengths

if TYPE_CHECKING:
    from setpoint.data import config

SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
"""Signals that reach all processes of a terminal or of a job; the main one answers them."""
LOOK = 1.0
"""Seconds between two looks at whether the main process is alive."""
NAMES = {each.value: each.name for each in signal.Signals}
WHY = {
    "SIGKILL": ", which the system sends where memory has run out",
    "SIGBUS": ", as where a mapped file has become shorter",
}
"""What signals mean that no process asks for."""
INT32 = np.iinfo(np.int32)
HELD = (*TENSORS, "source", "sources")


def loader_options(workers: config.Workers, device: torch.device) -> dict[str, Any]:
    """What feeds make of the workers that `[data.loader]` asks for."""
    return {
        "workers": workers.workers,
        "prefetch": workers.prefetch,
        "pin_memory": workers.pin_memory and device.type == "cuda",
        "timeout": workers.timeout or 0.0,
    }


class Maker(Protocol):
    """What makes rows that are named; see `setpoint.data.sequences.Sequences`."""

    def rows(self, rows: Rows) -> Batch:
        """Some of them as a batch."""
        ...

    def describe(self, rows: Rows) -> str:
        """Name documents of some of them, for messages."""
        ...


class Failed(NamedTuple):
    """What a worker gives in place of rows that it could not make."""

    error: Exception
    trace: str


class Sent:
    """A batch on its way between processes: one message, where torch opens a file per tensor.

    Arguments:
        seconds: that making it took.
    """

    def __init__(self, batch: Batch, seconds: float) -> None:
        self.batch, self.seconds = batch, seconds

    def __reduce__(self) -> tuple[Callable[..., Sent], tuple[Any, ...]]:
        tensors = {name: getattr(self.batch, name) for name in HELD}
        arrays = {name: _narrow(each.numpy()) for name, each in tensors.items() if each is not None}
        lengths = self.batch.lengths
        if lengths is not None:
            arrays["lengths"] = lengths.starts, lengths.starts.dtype.str
        numbers = (self.batch.tokens, self.batch.target_tokens, self.batch.target_bytes)
        return _received, (arrays, numbers, self.seconds)

    def pin_memory(self, _: object = None) -> Sent:
        """Called by torch's thread that pins."""
        return Sent(self.batch.pin_memory(), self.seconds)


def _narrow(array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], str]:
    """Half of the bytes where they hold the numbers, and what type it had."""
    kind = array.dtype.str
    small = array.dtype == np.int64 and array.size > 0
    if small and INT32.min <= array.min() and array.max() <= INT32.max:
        array = array.astype(np.int32)
    return array, kind


def _received(
    arrays: Mapping[str, tuple[npt.NDArray[Any], str]],
    numbers: tuple[int, int, int],
    seconds: float,
) -> Sent:
    tensors: dict[str, Any] = {
        name: Lengths.of(array) if name == "lengths" else torch.from_numpy(array.astype(kind))
        for name, (array, kind) in arrays.items()
    }
    tokens, target_tokens, target_bytes = numbers
    batch = Batch(tokens=tokens, target_tokens=target_tokens, target_bytes=target_bytes, **tensors)
    return Sent(batch, seconds)


class Making(Dataset[Any]):
    """The rows as a map from their names, each numbered in the order of the stream.

    Arguments:
        busy: (workers, 2) int64 in shared memory; a worker's process and what it makes, -1 for
            nothing.
    """

    def __init__(self, sequences: Maker, busy: torch.Tensor) -> None:
        self.sequences = Shared(sequences)
        self.busy = busy

    def __getitem__(self, key: tuple[int, Rows]) -> Sent | Failed:
        number, rows = key
        info = torch.utils.data.get_worker_info()
        assert info is not None
        self.busy[info.id] = torch.tensor([os.getpid(), number])
        began = time.perf_counter()
        try:
            return Sent(self.sequences.value.rows(rows), time.perf_counter() - began)
        except Exception as error:  # told by the main process, which knows the rows
            return Failed(error, traceback.format_exc())
        finally:
            self.busy[info.id, 1] = -1


def quiet_worker(_: int) -> None:
    """Leave signals to the main process, and end where that one says so, or is gone.

    A terminal, a queue or a container sends them to all processes of a run, which is to finish its
    step and save.
    """
    for number in SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, set(SIGNALS) - {signal.SIGTERM})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main, above = multiprocessing.parent_process(), os.getppid()
    assert main is not None

    def wait() -> None:
        # The main process may have been gone before its number could be asked for.
        while os.getppid() == above and main.is_alive():
            heard = signal.sigtimedwait({signal.SIGTERM}, LOOK)
            if heard is not None and heard.si_pid == main.pid:
                break
        os._exit(128 + signal.SIGTERM)  # the other threads may wait for a process that is gone

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def _held_signals() -> Iterator[None]:
    """Keep signals from processes that are being started, which do not answer them yet."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _no_strays(others: list[Any]) -> Iterator[None]:
    """Kill processes that were started before the start of a later one failed."""
    try:
        yield
    except BaseException:
        _kill(each for each in multiprocessing.active_children() if each not in others)
        raise


def _kill(processes: Iterable[Any]) -> None:
    for process in processes:
        with suppress(OSError, ValueError):
            process.kill()


class Loader:
    """Rows made ahead of their use, given in the order in which they are named.

    Arguments:
        names: rows to make, perhaps endless.
        workers: processes, at least 1.
        prefetch: rows that each worker is ahead by.
        pin_memory: whether to put them into memory from which a GPU copies while it computes.
        timeout: seconds to wait for one; 0: for ever.
        section: of the configuration, for messages.

    Raises:
        RunError: the data cannot be sent to a worker; from `__next__`: one died or hangs.
    """

    def __init__(
        self,
        sequences: Maker,
        names: Iterator[Rows],
        *,
        workers: int,
        prefetch: int,
        pin_memory: bool = False,
        timeout: float = 0.0,
        section: str = "data.loader",
    ) -> None:
        self.sequences = sequences
        self.timeout = timeout
        self.section = section
        self.busy = torch.full((workers, 2), -1, dtype=torch.int64).share_memory_()
        self.named: dict[int, Rows] = {}
        self.given = 0
        self.making = 0.0
        """Seconds that the workers spent on what was given."""
        loader: Any = DataLoader(
            Making(sequences, self.busy),
            batch_size=None,
            sampler=self._numbered(names),
            num_workers=workers,
            prefetch_factor=prefetch,
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=quiet_worker,
            # Its own, since the loader draws a number of the generator that dropout uses.
            generator=torch.Generator(),
        )
        before, others = signal.getsignal(signal.SIGCHLD), multiprocessing.active_children()
        try:
            with _held_signals(), _no_strays(others):
                self.batches: Iterator[Any] = iter(loader)
        except (TypeError, AttributeError, ValueError, OSError) as error:
            raise RunError(
                f"{section}.workers: {workers} worker processes cannot be started by "
                f"{multiprocessing.get_start_method()!r}: {type(error).__name__}: {error}\n"
                f"Valid: {section}.workers = 0."
            ) from error
        # Torch's handler raises wherever the main process is; `next` finds a dead worker as well.
        if threading.current_thread() is threading.main_thread():
            of_torch = getattr(before, "__module__", "").startswith("torch.utils.data")
            kept = signal.SIG_DFL if before is None or of_torch else before
            signal.signal(signal.SIGCHLD, kept)

    def _numbered(self, names: Iterator[Rows]) -> Iterator[tuple[int, Rows]]:
        for number, rows in enumerate(names):
            self.named[number] = rows
            yield number, rows

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        try:
            batch: Sent | Failed = next(self.batches)
        except (RuntimeError, OSError, EOFError) as error:
            raise RunError(self._ended(error)) from None
        rows = self.named.pop(self.given)
        self.given += 1
        if isinstance(batch, Failed):
            where = self.sequences.describe(rows)
            if isinstance(batch.error, SetpointError):
                raise type(batch.error)(f"{batch.error}\nIt was read for {where}.")
            raise RunError(f"data: reading {where} failed in a worker:\n{batch.trace}")
        self.making += batch.seconds
        return batch.batch

    def _ended(self, error: Exception) -> str:
        """Which worker died or hangs, and with what in its hands."""
        text = str(error)
        at = [
            (pid, self.sequences.describe(self.named[number]))
            for pid, number in self.busy.tolist()
            if number in self.named
        ]
        if "timed out" in text:
            lines = [f"{self.section}.timeout: no rows came within {self.timeout:g} seconds."]
            _kill(getattr(self.batches, "_workers", ()))  # else ending them would wait for them
        else:
            alive = {process.pid for process in multiprocessing.active_children()}
            at = [each for each in at if each[0] not in alive] or at
            why = self._deaths() or (text.splitlines() or [type(error).__name__])[0]
            lines = [f"{self.section}.workers: a worker process ended: {why}"]
        lines += [f"Worker {pid} was making {what}." for pid, what in at]
        return "\n".join(
            [
                *lines,
                f"Valid: {self.section}.workers = 0 makes the rows in this process, and shows why.",
            ]
        )

    def _deaths(self) -> str:
        """Which signals ended workers, in words."""
        found: list[str] = []
        for process in getattr(self.batches, "_workers", ()):
            code = process.exitcode
            if code is not None and code < 0:
                name = NAMES.get(-code, f"signal {-code}")
                found.append(f"{process.pid} by {name}{WHY.get(name, '')}")
        return ", ".join(found)

    def close(self) -> None:
        """End the workers, whoever still refers to their iterator."""
        # An exception on its way does, so that leaving it to the garbage would be too late.
        end = getattr(self.batches, "_shutdown_workers", None)
        workers = getattr(self.batches, "_workers", ())
        self.batches = iter(())
        if end is not None:
            end()
            # One that hangs hears no other signal, and the end of this process would wait for it.
            _kill(workers)
