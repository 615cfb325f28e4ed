"""Worker processes that make the rows which the main process names, in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from setpoint.config import RunError, SetpointError
from setpoint.data.sequences import Rows, Sequences
from setpoint.shapes.batch import Batch


class Failed(NamedTuple):
    """What a worker gives in place of rows that it could not make."""

    error: Exception
    trace: str


class Making(Dataset[Any]):
    """The rows as a map from their names, each numbered in the order of the stream.

    Arguments:
        busy: (workers, 2) int64 in shared memory; a worker's process and what it makes, -1 for
            nothing.
    """

    def __init__(self, sequences: Sequences, busy: torch.Tensor) -> None:
        self.sequences = sequences
        self.busy = busy

    def __getitem__(self, key: tuple[int, Rows]) -> Batch | Failed:
        number, rows = key
        info = torch.utils.data.get_worker_info()
        assert info is not None
        self.busy[info.id] = torch.tensor([os.getpid(), number])
        try:
            return self.sequences.rows(rows)
        except Exception as error:  # told by the main process, which knows the rows
            return Failed(error, traceback.format_exc())
        finally:
            self.busy[info.id, 1] = -1


def quiet_worker(_: int) -> None:
    """Leave signals of the terminal to the main process, which ends the workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Loader:
    """Rows made ahead of their use, given in the order in which they are named.

    Arguments:
        names: rows to make, endless.
        workers: processes, at least 1.
        prefetch: rows that each worker is ahead by.
        pin_memory: whether to put them into memory from which a GPU copies while it computes.
        timeout: seconds to wait for one; 0: for ever.

    Raises:
        RunError: from `__next__`: a worker died or hangs.
    """

    def __init__(
        self,
        sequences: Sequences,
        names: Iterator[Rows],
        *,
        workers: int,
        prefetch: int,
        pin_memory: bool = False,
        timeout: float = 0.0,
    ) -> None:
        self.sequences = sequences
        self.timeout = timeout
        self.busy = torch.full((workers, 2), -1, dtype=torch.int64).share_memory_()
        self.named: dict[int, Rows] = {}
        self.given = 0
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
        before = signal.getsignal(signal.SIGCHLD)
        self.batches: Iterator[Any] = iter(loader)
        # Torch's handler raises wherever the main process is; `next` finds a dead worker as well.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, before)

    def _numbered(self, names: Iterator[Rows]) -> Iterator[tuple[int, Rows]]:
        for number, rows in enumerate(names):
            self.named[number] = rows
            yield number, rows

    def __next__(self) -> Batch:
        try:
            batch: Batch | Failed = next(self.batches)
        except (RuntimeError, OSError, EOFError) as error:
            raise RunError(self._ended(error)) from None
        rows = self.named.pop(self.given)
        self.given += 1
        if isinstance(batch, Failed):
            where = self.sequences.describe(rows)
            if isinstance(batch.error, SetpointError):
                raise type(batch.error)(f"{batch.error}\nIt was read for {where}.")
            raise RunError(f"data: reading {where} failed in a worker:\n{batch.trace}")
        return batch

    def _ended(self, error: Exception) -> str:
        """Which worker died or hangs, and with what in its hands."""
        text = str(error)
        at = [
            (pid, self.sequences.describe(self.named[number]))
            for pid, number in self.busy.tolist()
            if number in self.named
        ]
        if "timed out" in text:
            lines = [f"data.loader.timeout: no rows came within {self.timeout:g} seconds."]
        else:
            alive = {process.pid for process in multiprocessing.active_children()}
            at = [each for each in at if each[0] not in alive] or at
            why = (text.splitlines() or [type(error).__name__])[0]
            lines = [f"data.loader.workers: a worker process ended: {why}"]
        lines += [f"Worker {pid} was making {what}." for pid, what in at]
        return "\n".join(
            [
                *lines,
                "Valid: data.loader.workers = 0 makes the rows in this process, and shows why.",
            ]
        )

    def close(self) -> None:
        """End the workers; they end when their iterator is gone."""
        self.batches = iter(())
