"""The batches of training as a rank sees them: planned, made by worker processes, counted."""

from __future__ import annotations

import io
import mmap
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.multiprocessing  # teaches ForkingPickler tensors
from torch.utils.data import DataLoader, Dataset

from setpoint.config import RunError, SetpointError
from setpoint.data.rows import Rows, Sequences
from setpoint.data.sampler import Sampler
from setpoint.shapes.batch import (
    IGNORE_INDEX,
    TENSORS,
    Batch,
    BySource,
    Count,
    Lengths,
    StepBatch,
    total_count,
)

if TYPE_CHECKING:
    from setpoint.data import config


T = TypeVar("T")

LARGE = 1 << 16
"""Bytes of an array above which it is not copied."""


class Shared(Generic[T]):
    """A value whose large arrays are in one place for all processes that it is sent to.

    Forks see the memory of their parent anyway. To others, arrays of mapped files are sent as the
    place in the file, and those in memory are copied once, into shared memory.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self._copies: dict[int, tuple[npt.NDArray[Any], torch.Tensor]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        buffer = io.BytesIO()
        _Pickler(buffer, self._copies).dump(self.value)
        return _opened, (buffer.getvalue(),)


def _opened(data: bytes) -> Shared[Any]:
    return Shared(pickle.loads(data))


class _Pickler(ForkingPickler):
    def __init__(
        self, file: io.BytesIO, copies: dict[int, tuple[npt.NDArray[Any], torch.Tensor]]
    ) -> None:
        super().__init__(file)
        self.copies = copies

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.nbytes < LARGE or value.dtype.hasobject:
            return NotImplemented
        array = cast("npt.NDArray[Any]", value)
        return _in_file(array) or self._in_memory(array)

    def _in_memory(self, array: npt.NDArray[Any]) -> tuple[Any, ...]:
        if id(array) not in self.copies:
            copy = torch.empty(array.nbytes, dtype=torch.uint8).share_memory_()
            copy.numpy()[:] = np.frombuffer(np.ascontiguousarray(array).data, np.uint8)
            self.copies[id(array)] = array, copy
        return _of_memory, (self.copies[id(array)][1], array.dtype.str, array.shape)


def _in_file(array: npt.NDArray[Any]) -> tuple[Any, ...] | None:
    """Reduce an array that is part of a mapped file to its place in the file; else None."""
    owner: Any = array
    mapped: Any = None
    while isinstance(owner, np.ndarray):
        mapped = owner if isinstance(owner, np.memmap) else mapped
        owner = cast("Any", owner).base
    if mapped is None or not isinstance(owner, mmap.mmap) or mapped.filename is None:
        return None
    if mapped.mode != "r" or not array.flags.c_contiguous:
        return None
    start = mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY
    first = np.frombuffer(owner, np.uint8).ctypes.data
    offset = start + array.ctypes.data - first
    return _of_file, (str(mapped.filename), array.dtype.str, array.shape, offset)


def _of_file(path: str, kind: str, shape: tuple[int, ...], offset: int) -> npt.NDArray[Any]:
    return np.asarray(np.memmap(path, kind, "r", offset, shape))


def _of_memory(data: torch.Tensor, kind: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return data.numpy().view(kind).reshape(shape)


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
"""Causes of signals that no process sends on purpose."""
INT32 = np.iinfo(np.int32)
HELD = (*TENSORS, "source", "sources")


def loader_options(workers: config.WorkerOptions, device: torch.device) -> dict[str, Any]:
    """Arguments of feeds for the workers of `[data.loader]`."""
    return {
        "workers": workers.workers,
        "prefetch": workers.prefetch,
        "pin_memory": workers.pin_memory and device.type == "cuda",
        "timeout": workers.timeout or 0.0,
    }


class Maker(Protocol):
    """A maker of batches of named rows; see `setpoint.data.rows.Sequences`."""

    def rows(self, rows: Rows) -> Batch:
        """Some of them as a batch."""
        ...

    def describe(self, rows: Rows) -> str:
        """Name documents of some of them, for messages."""
        ...


class Failed(NamedTuple):
    """The error of a worker, in place of a batch."""

    error: Exception
    trace: str


class SentBatch:
    """A batch on its way between processes: one message, where torch opens a file per tensor.

    Arguments:
        seconds: that making it took.
    """

    def __init__(self, batch: Batch, seconds: float) -> None:
        self.batch, self.seconds = batch, seconds

    def __reduce__(self) -> tuple[Callable[..., SentBatch], tuple[Any, ...]]:
        tensors = {name: getattr(self.batch, name) for name in HELD}
        arrays = {name: _narrow(each.numpy()) for name, each in tensors.items() if each is not None}
        lengths = self.batch.lengths
        if lengths is not None:
            arrays["lengths"] = lengths.starts, lengths.starts.dtype.str
        numbers = (self.batch.tokens, self.batch.target_tokens, self.batch.target_bytes)
        return _received, (arrays, numbers, self.seconds)

    def pin_memory(self, _: object = None) -> SentBatch:
        """Called by torch's thread that pins."""
        return SentBatch(self.batch.pin_memory(), self.seconds)


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
) -> SentBatch:
    tensors: dict[str, Any] = {
        name: Lengths.of(array) if name == "lengths" else torch.from_numpy(array.astype(kind))
        for name, (array, kind) in arrays.items()
    }
    tokens, target_tokens, target_bytes = numbers
    batch = Batch(tokens=tokens, target_tokens=target_tokens, target_bytes=target_bytes, **tensors)
    return SentBatch(batch, seconds)


class Making(Dataset[Any]):
    """The rows as a map from their names, each numbered in the order of the stream.

    Arguments:
        busy: (workers, 2) int64 in shared memory; a worker's process and what it makes, -1 for
            nothing.
    """

    def __init__(self, sequences: Maker, busy: torch.Tensor) -> None:
        self.sequences = Shared(sequences)
        self.busy = busy

    def __getitem__(self, key: tuple[int, Rows]) -> SentBatch | Failed:
        number, rows = key
        info = torch.utils.data.get_worker_info()
        assert info is not None
        self.busy[info.id] = torch.tensor([os.getpid(), number])
        began = time.perf_counter()
        try:
            return SentBatch(self.sequences.value.rows(rows), time.perf_counter() - began)
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


class BatchLoader:
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
            batch: SentBatch | Failed = next(self.batches)
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
        """Message that names the worker that died or hangs, and its rows."""
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
        """The signals that ended workers, in words."""
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


@dataclass(slots=True)
class Spent:
    """Time of the batches that were taken, in seconds.

    Arguments:
        planning: until it was known which rows come next, in the main process.
        making: the rows themselves, in whichever process.
    """

    batches: int = 0
    planning: float = 0.0
    making: float = 0.0

    def since(self, before: Spent) -> Spent:
        """The difference to an earlier moment."""
        return Spent(
            self.batches - before.batches,
            self.planning - before.planning,
            self.making - before.making,
        )


class Feed:
    """An endless stream of steps.

    A micro-batch of all ranks takes the sampler's next `micro_size * data_size` rows, each rank its
    own slice. The state is that of the sampler: it is the same on all ranks, and may be loaded with
    another number of ranks or micro-batch size.

    Arguments:
        sequences: make the rows that the sampler names.
        count: counts what of a micro-batch the loss is divided by.
        accumulation: micro-batches of a step.
        data_rank, data_size: of this process among those that read different data.
        divides: whether `divide` is called, after which it may be any rows of a step that it takes.
        workers: processes that make rows ahead; 0: this one makes them when they are taken. The
            rest is for them: see `setpoint.data.loader.BatchLoader`.

    Raises:
        SetpointError: a number is out of range.
    """

    def __init__(
        self,
        sequences: Sequences,
        sampler: Sampler,
        count: Callable[[Batch], Count],
        *,
        micro_size: int,
        accumulation: int = 1,
        data_rank: int = 0,
        data_size: int = 1,
        divides: bool = False,
        workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
        timeout: float = 0.0,
    ) -> None:
        for name, value in (("micro_size", micro_size), ("accumulation", accumulation)):
            if value < 1:
                raise SetpointError(f"batch.{name}: {value} is below 1.\nValid: 1 or more.")
        if not 0 <= data_rank < data_size:
            raise SetpointError(
                f"rank {data_rank} is not one of {data_size}.\nValid: 0 to {data_size - 1}."
            )
        self.sequences = sequences
        self.sampler = sampler
        self.count = count
        self.micro_size = micro_size
        self.accumulation = accumulation
        self.data_rank = data_rank
        self.data_size = data_size
        self._all, self._within = accumulation, (data_rank, data_size)
        width = micro_size * data_size
        firsts = range(data_rank * micro_size, accumulation * width, width)
        own = [first + row for first in firsts for row in range(micro_size)]
        sampler.deal(accumulation * width, range(accumulation * width) if divides else own)
        self.workers, self.prefetch = workers, prefetch
        self.pin_memory, self.timeout = pin_memory, timeout
        self.spent = Spent()
        self._loader: BatchLoader | None = None
        # Of each micro-batch that is named and not taken yet: where the data is behind it.
        self._ahead: deque[tuple[dict[str, Any], float]] = deque()
        self._epoch = sampler.epoch
        self._state: dict[str, Any] | None = None
        # Why no more rows can be named.
        self._end: SetpointError | None = None

    @property
    def epoch(self) -> float:
        """Passes over the data that were taken, with the fraction of the current one."""
        return self._epoch

    def agree(self, epoch: float) -> None:
        """Take the mean of the epochs of all ranks, where each knows that of its own rows alone."""
        self._epoch = epoch

    def divide(self, group: int, groups: int) -> None:
        """Take a part of the micro-batches of each step from now on, and leave the rest to others.

        As many groups as divide their number have the same; groups beyond these have none, and
        count as far as the others do.

        Arguments:
            group: the number of this one among all that train together, of as many ranks.
        """
        rank, size = self._within
        taking = max(each for each in range(1, groups + 1) if self._all % each == 0)
        place = group * size + rank, taking * size
        if place != (self.data_rank, self.data_size):
            self.close()  # what was made ahead has another shape
            self.data_rank, self.data_size = place
            self.accumulation = self._all // taking

    def take(self) -> StepBatch:
        """Make the batch of the next step of this rank, and count it.

        Raises:
            RunError: a worker died or hangs, or could not make a row.
        """
        if self.data_rank >= self.data_size:
            for _ in range(self.accumulation):
                self._name()
            self._epoch = self.sampler.epoch
            return StepBatch((), (), total_count(()), self._by_source((), ()), self._own_epoch())
        batches = tuple(self._next() for _ in range(self.accumulation))
        counts = tuple(self.count(batch) for batch in batches)
        by_source = self._by_source(batches, counts)
        return StepBatch(batches, counts, total_count(counts), by_source, self._own_epoch())

    def _own_epoch(self) -> float | None:
        return self._epoch if self.sampler.is_dealt else None

    def _by_source(self, batches: Sequence[Batch], counts: Sequence[Count]) -> BySource:
        number = len(self.sequences.sources)
        if number == 1:
            return BySource()
        sequences, targets = np.zeros(number, np.int64), np.zeros(number, np.int64)
        for batch, count in zip(batches, counts, strict=True):
            if batch.source is None:
                return BySource()
            valid = batch.targets != IGNORE_INDEX if count.valid is None else count.valid
            source = batch.source.unsqueeze(1) if batch.sources is None else batch.sources
            sequences += np.bincount(batch.source.numpy(), minlength=number)
            targets += np.bincount(source.expand_as(valid)[valid].numpy(), minlength=number)
        return BySource(tuple(sequences.tolist()), tuple(targets.tolist()))

    def _next(self) -> Batch:
        self.spent.batches += 1
        if not self.workers:
            rows, began = self._name(), time.perf_counter()
            batch = self.sequences.rows(rows)
            self.spent.making += time.perf_counter() - began
            self._epoch = self.sampler.epoch
            return batch
        if self._loader is None:
            self._state = self.sampler.state_dict()
            self._loader = BatchLoader(
                self.sequences,
                self._names(),
                workers=self.workers,
                prefetch=self.prefetch,
                pin_memory=self.pin_memory,
                timeout=self.timeout,
            )
        before = self._loader.making
        batch = next(self._loader, None)
        self.spent.making += self._loader.making - before
        if batch is None:
            assert self._end is not None
            raise self._end
        self._state, self._epoch = self._ahead.popleft()
        return batch

    def _name(self) -> Rows:
        """The rows of the next micro-batch of this rank."""
        began = time.perf_counter()
        first = self.data_rank * self.micro_size
        count = self.micro_size * self.data_size
        rows = self.sampler.take(count, slice(first, first + self.micro_size))
        self.spent.planning += time.perf_counter() - began
        return rows

    def _names(self) -> Iterator[Rows]:
        while True:
            try:
                rows = self._name()
            except SetpointError as error:  # raised when what was named before has been taken
                self._end = error
                return
            self._ahead.append((self.sampler.state_dict(), self.sampler.epoch))
            yield rows

    def close(self) -> None:
        """End the workers; called when a session ends, after an error, too.

        The position stays, and `take` may be called again, which takes anew what it needs.
        """
        if self._loader is not None:
            self._loader.close()
            self._loader = None
            self._ahead.clear()
            # The sampler has named rows that nobody took.
            self.sampler.load_state_dict(self.state_dict())
        self.sampler.close()

    def state_dict(self) -> dict[str, Any]:
        """Position in the data after the last batch that was taken; JSON-able, small."""
        return self.sampler.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Continue where `state` was taken; see `Sampler.load_state_dict`."""
        self.close()
        self.sampler.load_state_dict(state, other_data)
        self._state, self._epoch = None, self.sampler.epoch
