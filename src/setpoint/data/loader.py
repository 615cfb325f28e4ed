"""Batches of a rank for training and evaluation: planned in order, made by worker processes."""

from __future__ import annotations

import io
import math
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
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.multiprocessing  # teaches ForkingPickler tensors
from torch.utils.data import DataLoader, Dataset

from setpoint.config import RunError, SetpointError
from setpoint.data.config import WorkerOptions
from setpoint.data.order import Rows, Sampler
from setpoint.data.rows import DocumentRows, Sequences
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

T = TypeVar("T")
TextRows = tuple[str, npt.NDArray[np.int64]]
"""The name of a data set, and numbers of its rows."""

NO_WORKERS = WorkerOptions()
LARGE = 1 << 16
"""Bytes of an array above which it is shared instead of copied."""


class Shared(Generic[T]):
    """A value with large arrays that are shared by all processes to which it is sent.

    Forked processes share memory anyway. To other processes, memory-mapped arrays are sent as a
    position in the file; arrays in memory are copied once into shared memory.
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
        return _reduce_mapped(array) or self._reduce_shared(array)

    def _reduce_shared(self, array: npt.NDArray[Any]) -> tuple[Any, ...]:
        if id(array) not in self.copies:
            copy = torch.empty(array.nbytes, dtype=torch.uint8).share_memory_()
            copy.numpy()[:] = np.frombuffer(np.ascontiguousarray(array).data, np.uint8)
            self.copies[id(array)] = array, copy
        return _view_memory, (self.copies[id(array)][1], array.dtype, array.shape)


def _reduce_mapped(array: npt.NDArray[Any]) -> tuple[Any, ...] | None:
    """Reduce an array in a memory-mapped file to its position in the file; None for others."""
    owner: Any = array
    mapped: Any = None
    while isinstance(owner, np.ndarray):
        mapped = owner if isinstance(owner, np.memmap) else mapped
        owner = cast("Any", owner).base
    if mapped is None or not isinstance(owner, mmap.mmap) or mapped.filename is None:
        return None
    if mapped.mode != "r" or min(array.strides) < 0:
        return None
    start = mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY
    first = np.frombuffer(owner, np.uint8).ctypes.data
    offset = start + array.ctypes.data - first
    return _map_file, (str(mapped.filename), array.dtype, array.shape, offset, array.strides)


def _map_file(
    path: str, kind: np.dtype[Any], shape: tuple[int, ...], offset: int, strides: tuple[int, ...]
) -> npt.NDArray[Any]:
    # A column of a table is not contiguous.
    return np.ndarray(shape, kind, np.memmap(path, np.uint8, "r"), offset, strides)


def _view_memory(
    data: torch.Tensor, kind: np.dtype[Any], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    return data.numpy().view(kind).reshape(shape)


SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
"""Signals that reach all processes of a terminal or a job; the main process handles them."""
LOOK = 1.0
"""Maximum seconds between two checks that the main process and the workers are alive."""
TIMED_OUT = "DataLoader timed out"
"""Start of the message of torch's RuntimeError."""
NAMES = {each.value: each.name for each in signal.Signals}
WHY = {
    "SIGKILL": ", which the system sends when it runs out of memory",
    "SIGBUS": ", for example because a mapped file was truncated",
}
"""Likely causes of signals that no process sends on purpose."""
INT32 = np.iinfo(np.int32)
HELD = (*TENSORS, "source", "sources")


class Failed(NamedTuple):
    """Error of a worker, sent in place of a batch."""

    error: Exception
    trace: str


class SentBatch:
    """A batch as one message between processes, since torch would open a file per tensor.

    Arguments:
        seconds: time taken to make the batch.
    """

    def __init__(self, batch: Batch, seconds: float) -> None:
        self.batch, self.seconds = batch, seconds

    def __reduce__(self) -> tuple[Callable[..., SentBatch], tuple[Any, ...]]:
        tensors = {name: getattr(self.batch, name) for name in HELD}
        arrays = {name: _narrow(t.numpy()) for name, t in tensors.items() if t is not None}
        lengths = self.batch.lengths
        if lengths is not None:
            arrays["lengths"] = lengths.starts, lengths.starts.dtype.str
        numbers = (self.batch.tokens, self.batch.target_tokens, self.batch.target_bytes)
        return _rebuild_batch, (arrays, numbers, self.seconds)

    def pin_memory(self, _: object = None) -> SentBatch:
        """Pin the batch; called by torch's pinning thread."""
        return SentBatch(self.batch.pin_memory(), self.seconds)


def _narrow(array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], str]:
    """The array as int32 if it fits, and its original dtype."""
    kind = array.dtype.str
    small = array.dtype == np.int64 and array.size > 0
    if small and INT32.min <= array.min() and array.max() <= INT32.max:
        array = array.astype(np.int32)
    return array, kind


def _rebuild_batch(
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
    """Data set of batches, keyed by number and rows.

    Arguments:
        busy: (workers, 2) int64 in shared memory: process id of a worker and the number of its
            current batch, -1 if idle.
    """

    def __init__(self, sequences: Sequences | _Texts, busy: torch.Tensor) -> None:
        self.sequences = Shared(sequences)
        self.busy = busy

    def __getitem__(self, key: tuple[int, Rows]) -> SentBatch | Failed:
        number, rows = key
        info = torch.utils.data.get_worker_info()
        assert info is not None
        self.busy[info.id] = torch.tensor([os.getpid(), number])
        began = time.perf_counter()
        try:
            return SentBatch(self.sequences.value.batch_of(rows), time.perf_counter() - began)
        except Exception as error:  # told by the main process, which knows the rows
            return Failed(error, traceback.format_exc())
        finally:
            self.busy[info.id, 1] = -1


def quiet_worker(_: int) -> None:
    """Ignore signals except SIGTERM of the main process, and exit when it dies.

    A terminal, queue or container signals all processes of a run, but the run still has to finish
    its step and save.
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
            info = signal.sigtimedwait({signal.SIGTERM}, LOOK)
            if info is not None and info.si_pid == main.pid:
                break
        os._exit(128 + signal.SIGTERM)  # the other threads may wait for a process that is gone

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def _starting_workers() -> Iterator[None]:
    """Block signals while processes start that cannot handle them yet; kill them if one fails."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    running = multiprocessing.active_children()
    try:
        yield
    except BaseException:
        _kill(process for process in multiprocessing.active_children() if process not in running)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _kill(processes: Iterable[Any]) -> None:
    for process in processes:
        with suppress(OSError, ValueError):
            process.kill()


class BatchLoader:
    """Batches prepared by worker processes, in order.

    Arguments:
        plans: the rows of each batch; may be endless.
        options: options of the worker processes, at least one.
        section: path of the section of the configuration, for messages.

    Raises:
        RunError: the data cannot be sent to a worker; from `__next__`: a worker died or hangs.
    """

    def __init__(
        self,
        sequences: Sequences | _Texts,
        plans: Iterator[Rows],
        options: WorkerOptions,
        section: str = "data.loader",
    ) -> None:
        self.sequences = sequences
        self.timeout = options.timeout
        self.section, workers = section, options.workers
        self.busy = torch.full((workers, 2), -1, dtype=torch.int64).share_memory_()
        self.planned: dict[int, Rows] = {}
        self.given = 0
        self.making = 0.0
        """Seconds that the workers spent on the batches returned so far."""
        loader: Any = DataLoader(
            Making(sequences, self.busy),
            batch_size=None,
            sampler=self._numbered(plans),
            num_workers=workers,
            prefetch_factor=options.prefetch,
            pin_memory=options.pin_memory,
            # A whole number of checks takes exactly the timeout.
            timeout=self.timeout / math.ceil(self.timeout / LOOK) if self.timeout else LOOK,
            worker_init_fn=quiet_worker,
            # Its own, since the loader draws a number of the generator that dropout uses.
            generator=torch.Generator(),
        )
        before = signal.getsignal(signal.SIGCHLD)
        try:
            with _starting_workers():
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

    def _numbered(self, plans: Iterator[Rows]) -> Iterator[tuple[int, Rows]]:
        for number, rows in enumerate(plans):
            self.planned[number] = rows
            yield number, rows

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self._receive()
        rows = self.planned.pop(self.given)
        self.given += 1
        if isinstance(batch, Failed):
            where = self.sequences.describe(rows)
            if isinstance(batch.error, SetpointError):
                raise type(batch.error)(f"{batch.error}\nIt was read for {where}.")
            raise RunError(f"data: reading {where} failed in a worker:\n{batch.trace}")
        self.making += batch.seconds
        return batch.batch

    def _receive(self) -> SentBatch | Failed:
        """Wait for the next batch, and check every `LOOK` seconds that all workers are alive.

        Raises:
            RunError: a worker died, or nothing came before the timeout.
        """
        began = time.monotonic()
        while True:
            # Before reading, since a killed worker may have sent half of a message.
            if deaths := self._deaths():
                raise RunError(self._describe_failure(f"workers: a worker process ended: {deaths}"))
            try:
                return next(self.batches)
            except (RuntimeError, OSError, EOFError) as error:
                if self._deaths():
                    continue
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                thread = getattr(self.batches, "_pin_memory_thread", None)
                timed_out = isinstance(error, RuntimeError) and reason.startswith(TIMED_OUT)
                if not timed_out or not (thread is None or thread.is_alive()):
                    raise RunError(self._describe_failure(f"workers: {reason}")) from None
            if self.timeout and time.monotonic() - began >= self.timeout:
                text = f"timeout: no rows came within {self.timeout:g} seconds."
                message = self._describe_failure(text)
                _kill(getattr(self.batches, "_workers", ()))  # else closing would wait for them
                raise RunError(message)

    def _describe_failure(self, reason: str) -> str:
        """Message about a worker that died or hangs, with its rows."""
        active = [
            (pid, self.sequences.describe(self.planned[number]))
            for pid, number in self.busy.tolist()
            if number in self.planned
        ]
        alive = {process.pid for process in multiprocessing.active_children()}
        active = [entry for entry in active if entry[0] not in alive] or active
        return "\n".join(
            [
                f"{self.section}.{reason}",
                *(f"Worker {pid} was making {rows}." for pid, rows in active),
                f"Valid: {self.section}.workers = 0 builds the rows in this process and shows the "
                f"reason.",
            ]
        )

    def _deaths(self) -> str:
        """Process ids of workers that ended before the last batch, and how; empty if none did."""
        deaths: list[str] = []
        for process in getattr(self.batches, "_workers", ()) if self.planned else ():
            code = process.exitcode
            if code is not None and code < 0:
                name = NAMES.get(-code, f"signal {-code}")
                deaths.append(f"{process.pid} by {name}{WHY.get(name, '')}")
            elif code is not None:
                deaths.append(f"{process.pid} with exit status {code}")
        return ", ".join(deaths)

    def close(self) -> None:
        """Stop the workers, even if their iterator is still referenced."""
        # A traceback may hold a reference, so garbage collection would come too late.
        end = getattr(self.batches, "_shutdown_workers", None)
        workers = getattr(self.batches, "_workers", ())
        self.batches = iter(())
        if end is not None:
            end()
            # One that hangs hears no other signal, and the end of this process would wait for it.
            _kill(workers)


@dataclass(slots=True)
class Spent:
    """Time spent on the batches taken so far, in seconds.

    Arguments:
        planning: choosing the next rows, in the main process.
        making: making the rows, in any process.
    """

    batches: int = 0
    planning: float = 0.0
    making: float = 0.0

    def since(self, before: Spent) -> Spent:
        """Difference from an earlier state."""
        return Spent(
            self.batches - before.batches,
            self.planning - before.planning,
            self.making - before.making,
        )


class Feed:
    """An endless sequence of step batches.

    A global micro-batch takes the next `micro_size * data_size` rows of the sampler, of which each
    rank gets a slice. The state is that of the sampler: equal on all ranks, and valid for any
    number of ranks and any micro-batch size.

    Arguments:
        sequences: maker of the rows planned by the sampler.
        count: function that counts the loss divisor of a micro-batch.
        accumulation: micro-batches per step of all replica groups; assign another number to change
            the next steps.
        data_rank, data_size: rank and number of the data-parallel processes.
        divides: whether `divide` will be called, so that this rank may take any rows of a step.
        loader: options of worker processes; by default there are none.
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
        loader: WorkerOptions = NO_WORKERS,
    ) -> None:
        self.sequences = sequences
        self.sampler = sampler
        self.count = count
        self.micro_size = micro_size
        self.accumulation = accumulation
        self.data_rank = data_rank
        self.data_size = data_size
        self._within, self._taking = (data_rank, data_size), 1
        width = micro_size * data_size
        firsts = range(data_rank * micro_size, accumulation * width, width)
        local_rows = [first + row for first in firsts for row in range(micro_size)]
        sampler.deal(accumulation * width, range(accumulation * width) if divides else local_rows)
        self.loader = loader
        self.spent = Spent()
        self._loader: BatchLoader | None = None
        # Of each micro-batch that is planned and not taken yet: where the data is behind it.
        self._ahead: deque[tuple[dict[str, Any], float]] = deque()
        self.epoch = sampler.epoch
        """Passes over the data, with the fraction of the current one."""
        self._state: dict[str, Any] | None = None
        # Why no more rows can be planned.
        self._end: Exception | None = None

    def agree(self, epoch: float) -> None:
        """Set the epoch to the mean over ranks; a rank knows only its own rows of a stream."""
        self.epoch = epoch

    def divide(self, group: int, groups: int) -> None:
        """Take only a part of the micro-batches of the next step.

        The micro-batches are divided evenly among the largest possible number of groups; groups
        beyond that number get none, but advance like the others.

        Arguments:
            group: index of this group among equally large groups of ranks.
        """
        rank, size = self._within
        self._taking = max(n for n in range(1, groups + 1) if self.accumulation % n == 0)
        place = group * size + rank, self._taking * size
        if place != (self.data_rank, self.data_size):
            self.close()  # what was made ahead has another shape
            self.data_rank, self.data_size = place

    def take(self) -> StepBatch:
        """Take this rank's batch for the next step, with its counts.

        Raises:
            RunError: a worker died, hangs, or could not make a row.
        """
        batches: tuple[Batch, ...] = ()
        count = self.accumulation // self._taking
        if self.data_rank < self.data_size:
            batches = tuple(self._next() for _ in range(count))
        else:  # of a group beyond those that take micro-batches
            for _ in range(count):
                self._plan()
            self.epoch = self.sampler.epoch
        counts = tuple(self.count(batch) for batch in batches)
        epoch = self.epoch if self.sampler.is_dealt else None
        by_source = self._by_source(batches, counts)
        return StepBatch(batches, counts, total_count(counts), by_source, epoch)

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
        if not self.loader.workers:
            rows, began = self._plan(), time.perf_counter()
            batch = self.sequences.batch_of(rows)
            self.spent.making += time.perf_counter() - began
            self.epoch = self.sampler.epoch
            return batch
        if self._loader is None:
            self._state = self.sampler.state_dict()
            self._loader = BatchLoader(self.sequences, self._plans(), self.loader)
        before = self._loader.making
        batch = next(self._loader, None)
        self.spent.making += self._loader.making - before
        if batch is None:
            assert self._end is not None
            raise self._end
        self._state, self.epoch = self._ahead.popleft()
        return batch

    def _plan(self) -> Rows:
        """Plan the rows of the next micro-batch of this rank."""
        began = time.perf_counter()
        first = self.data_rank * self.micro_size
        count = self.micro_size * self.data_size
        rows = self.sampler.take(count, slice(first, first + self.micro_size))
        self.spent.planning += time.perf_counter() - began
        return rows

    def _plans(self) -> Iterator[Rows]:
        while True:
            try:
                rows = self._plan()
            except Exception as error:  # raised when what was planned before has been taken
                self._end = error
                return
            self._ahead.append((self.sampler.state_dict(), self.sampler.epoch))
            yield rows

    def close(self) -> None:
        """Stop the workers; called at the end of a session, even after an error.

        The position is kept, and `take` may be called again.
        """
        if self._loader is not None:
            self._loader.close()
            self._loader = None
            self._ahead.clear()
            # The sampler has planned rows that were not taken.
            self.sampler.load_state_dict(self.state_dict())
        self.sampler.close()

    def state_dict(self) -> dict[str, Any]:
        """Position in the data after the last batch taken; small, serializable as JSON."""
        return self.sampler.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Continue from the position at which `state` was taken; see `Sampler.load_state_dict`."""
        self.close()
        self.sampler.load_state_dict(state, other_data)
        self._state, self.epoch = None, self.sampler.epoch


class EvaluationFeed:
    """Batches of evaluation data, the same in each pass.

    Documents are in the order of the split's hash, so the first sequences are a fair sample.
    Each target is predicted exactly once. The result depends on the limits, not on `micro_size`.

    Workers live from the first pass to `close`. They cycle through the data sets, so the first
    batches of the next pass are prepared in advance.

    Arguments:
        texts: data sets, each with a limit on its sequences; None: all sequences.
        micro_size: B, sequences in a batch of one rank; the last batch of a text may be smaller.
        data_rank, data_size: rank and number of the data-parallel processes.
        loader: options of worker processes; by default there are none.
    """

    def __init__(
        self,
        texts: Mapping[str, tuple[DocumentRows, int | None]],
        *,
        micro_size: int,
        data_rank: int = 0,
        data_size: int = 1,
        loader: WorkerOptions = NO_WORKERS,
    ) -> None:
        self.texts = _Texts({name: sequences for name, (sequences, _) in texts.items()})
        self.available = {name: len(sequences) for name, (sequences, _) in texts.items()}
        """Sequences that each data set has."""
        self.totals = {
            name: count if (limit := texts[name][1]) is None else min(count, limit)
            for name, count in self.available.items()
        }
        """Sequences of each data set in a pass, over all ranks."""
        self.micro_size = micro_size
        self.data_rank, self.data_size = data_rank, data_size
        self.loader = loader
        self._loader: BatchLoader | None = None
        self._next = ""

    def batches(self, name: str) -> Iterator[Batch]:
        """Iterate once over a data set.

        Raises:
            RunError: a worker died, hangs, or could not make a row.
        """
        if not self.loader.workers:
            yield from map(self.texts.batch_of, self._pass(name))
            return
        if name != self._next:
            self.close()
        if self._loader is None:
            plans, section = self._passes(name), "data.loader.evaluation"
            self._loader = BatchLoader(self.texts, plans, self.loader, section)
        self._next = ""  # a pass that is left before its end leaves batches behind
        for _ in self._pass(name):
            yield next(self._loader)
        self._next = self._next_name(name)

    @property
    def global_batch_size(self) -> int:
        """Sequences in a batch over all ranks; the last batch may be smaller."""
        return self.micro_size * self.data_size

    def local_count(self, name: str) -> int:
        """Number of sequences counted by this rank: the first ones of its pass.

        Ranks that shard weights must run the same number of batches: if fewer sequences than ranks
        are left, a rank without one runs another rank's sequence without counting it.
        """
        full, remainder = divmod(self.totals[name], self.global_batch_size)
        return full * self.micro_size + (remainder + self.data_size - 1 - self.data_rank) // (
            self.data_size
        )

    def _pass(self, name: str) -> Iterator[TextRows]:
        indices = np.arange(self.totals[name])
        for first in range(0, len(indices), self.global_batch_size):
            batch = indices[first : first + self.global_batch_size]
            local_batch = np.array_split(batch, self.data_size)[self.data_rank]
            yield name, local_batch if len(local_batch) else batch[:1]

    def _passes(self, name: str) -> Iterator[TextRows]:
        while True:
            yield from self._pass(name)
            name = self._next_name(name)

    def _next_name(self, name: str) -> str:
        names = [*self.totals]
        return names[(names.index(name) + 1) % len(names)]

    def close(self) -> None:
        """Stop the workers; calling `batches` again restarts them."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None


class _Texts:
    """Several data sets, with rows planned by data set and number."""

    def __init__(self, texts: Mapping[str, DocumentRows]) -> None:
        self.texts = texts

    def batch_of(self, rows: TextRows) -> Batch:
        name, indices = rows
        return self.texts[name].batch_of(indices)

    def describe(self, rows: TextRows) -> str:
        name, indices = rows
        return self.texts[name].describe(indices)
