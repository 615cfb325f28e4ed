"""Use of the machine, sampled in a thread."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self

from setpoint.config import Problem, SetpointError

from .console import now
from .jsonl import JsonlWriter

if TYPE_CHECKING:
    from .config import System

KEPT = 1000
"""Samples that may wait for the loop, which hands them to the trackers."""


def missing_problems(config: System) -> Iterator[Problem]:
    """Find that the package is not installed."""
    if importlib.util.find_spec("psutil") is None:
        hint = "Or leave tracking.system out."
        yield Problem(
            "every", "needs the package psutil: pip install 'setpoint[system]'", hint=hint
        )


class SystemSampler:
    """Samples while it is open; a hang of training does not stop it.

    A file that cannot be written any more is no reason to end a run: `note` hears of it once.

    Arguments:
        path: of the file.
        run: the run directory, whose disk is looked at.
        gpu: the UUID of the GPU of this rank, as NVML knows it; None: there is none.
        note: shows a line to people.
    """

    def __init__(
        self, every: float, path: Path, run: Path, gpu: str | None, note: Callable[[str], None]
    ) -> None:
        self.every, self.path, self.run, self.note = every, path, run, note
        self.waiting: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._psutil: Any = importlib.import_module("psutil")
        self._process = self._psutil.Process()
        self._gpu = None if gpu is None else _Gpu.find(gpu)
        self._network: tuple[float, Any] | None = None
        self._ended = Event()
        self._thread = Thread(target=self._go_on, name="setpoint-system", daemon=True)

    def __enter__(self) -> Self:
        # The first call only begins to count.
        self._psutil.cpu_percent()
        self._process.cpu_percent()
        self._network = time.monotonic(), self._psutil.net_io_counters()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def sample(self) -> dict[str, Any]:
        """The use of the machine now; percentages and speeds since the sample before.

        Returns:
            bytes, percent (of one core for the process, of all for the machine) and bytes per
            second; what the system does not say is left out.
        """
        psutil, memory = self._psutil, self._psutil.virtual_memory()
        row: dict[str, Any] = {
            "cpu_percent": psutil.cpu_percent(),
            "process_cpu_percent": self._process.cpu_percent(),
            "process_rss": self._process.memory_info().rss,
            "memory_used": memory.total - memory.available,
            "memory_total": memory.total,
            "disk_free": psutil.disk_usage(str(self.run)).free,
        }
        before, now_, counted = self._network, time.monotonic(), psutil.net_io_counters()
        if before is not None and before[1] is not None and counted is not None:
            seconds = max(now_ - before[0], 1e-9)
            row["network_sent"] = (counted.bytes_sent - before[1].bytes_sent) / seconds
            row["network_received"] = (counted.bytes_recv - before[1].bytes_recv) / seconds
        self._network = now_, counted
        return row if self._gpu is None else row | self._gpu.sample()

    def _go_on(self) -> None:
        try:
            writer = JsonlWriter(self.path)
            try:
                while not self._ended.wait(self.every):
                    row = {"kind": "system", "time": now(), **self.sample()}
                    self.waiting.append(row)
                    writer.write(row)
            finally:
                writer.close()
        except (SetpointError, OSError, self._psutil.Error) as error:
            self.note(f"tracking.system: no more samples are taken: {error}")


class _Gpu:
    """What NVML says of one GPU; readings that it does not have are left out."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle

    @classmethod
    def find(cls, uuid: str) -> _Gpu | None:
        """Find a GPU; None where NVML or its package is not there."""
        try:
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
        except ImportError:
            return None
        except Exception as error:
            if type(error).__module__.startswith("pynvml"):
                return None
            raise

    def sample(self) -> dict[str, Any]:
        """Percent of the time that kernels ran, bytes, watts and degrees Celsius."""
        nvml, handle = self.nvml, self.handle
        readings: dict[str, Callable[[], float]] = {
            "gpu_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "gpu_memory_used": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "gpu_memory_total": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
            "gpu_power": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "gpu_temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, 0),
        }
        row: dict[str, Any] = {}
        for name, read in readings.items():
            try:
                row[name] = read()
            except nvml.NVMLError:
                continue
        return row
