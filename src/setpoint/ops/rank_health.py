"""Health of ranks: heartbeats, system utilization, and GPU problems reported by NVML."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from setpoint.checkpoint.folder import directory_name, read_pointer
from setpoint.config import SetpointError
from setpoint.files.threads import Periodic
from setpoint.ops.heartbeat import Heart, Standing
from setpoint.resilience.config import GpuHealthCheck, Heartbeat
from setpoint.track.config import System
from setpoint.track.console import now
from setpoint.track.jsonl import JsonlWriter
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.verdict import StepResult

if TYPE_CHECKING:
    from setpoint.train.session import Run

SAMPLES = 1000
"""Maximum number of samples queued for the trackers."""
THROTTLING = {
    "nvmlClocksEventReasonHwSlowdown": "by the hardware",
    "nvmlClocksEventReasonHwThermalSlowdown": "because it is too hot",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "by the power supply",
    "nvmlClocksEventReasonSwThermalSlowdown": "because it is too hot, by the driver",
}
"""NVML's reasons for clock throttling, except those set by the user."""


class HeartbeatCallback(Callback):
    """Writes the heartbeat of this rank while the run directory is open."""

    phase = Phase.STEP

    def __init__(self, config: Heartbeat) -> None:
        self.config = config
        self.heart: Heart | None = None

    def opened(self, run: Run, stack: ExitStack) -> None:
        """Write the first heartbeat."""
        world = run.world
        self.heart = Heart(
            run.directory, self.config.every, world.rank, world.size, run.progress.note
        )
        stack.enter_context(self.heart)
        self.root = run.store.root

    def start(self, loop: Loop) -> None:
        """From now on, report the progress of the loop."""
        assert self.heart is not None
        self.heart.poll = lambda: self._standing(loop)

    def _standing(self, loop: Loop) -> Standing:
        """State of this rank, for its heartbeat thread."""
        phase = {Phase.EVALUATE: "evaluate", Phase.KEEP: "save"}.get(loop.phase, "step")
        loss = None if loop.result is None else loop.result.loss
        try:
            newest = read_pointer(self.root, "latest")
        except SetpointError:  # the run itself reports it if it matters
            newest = None
        name = None if newest is None else directory_name(newest)
        return Standing(phase, loop.position.step, loss, name)


class SystemCallback(Callback):
    """Samples system utilization on the main rank or on all ranks; logs only the main rank's."""

    phase = Phase.OBSERVE

    def __init__(self, config: System) -> None:
        self.config = config
        self.sampler: SystemSampler | None = None

    def opened(self, run: Run, stack: ExitStack) -> None:
        """Start sampling."""
        world, is_on_all = run.world, self.config.ranks == "all"
        if not (world.is_main or is_on_all):
            return
        gpu = None
        if world.device.type == "cuda":
            gpu = f"GPU-{torch.cuda.get_device_properties(world.device).uuid}"
        name = f"system-rank-{world.rank}.jsonl" if is_on_all else "system.jsonl"
        path = run.files.logs / name
        self.sampler = SystemSampler(self.config.every, path, run.directory, gpu, run.progress.note)
        stack.enter_context(self.sampler)
        self.trackers = run.trackers

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Log the samples since the last step, on the main rank; other ranks have no trackers."""
        while self.sampler is not None and self.sampler.waiting:
            row = self.sampler.waiting.popleft()
            self.trackers.write_beside({**row, "step": loop.position.step})


class SystemSampler:
    """Samples in a thread, which keeps running if training hangs.

    A failed write does not end the run; `note` receives a single line about it.

    Arguments:
        path: the output file.
        directory: a directory on the disk to sample.
        gpu: NVML's UUID of this rank's GPU; None without one.
        note: prints a line for the user.
    """

    def __init__(
        self,
        every: float,
        path: Path,
        directory: Path,
        gpu: str | None,
        note: Callable[[str], None],
    ) -> None:
        self.path, self.directory, self.note = path, directory, note
        self.waiting: deque[dict[str, Any]] = deque(maxlen=SAMPLES)
        self._psutil: Any = import_module("psutil")
        self._process = self._psutil.Process()
        self._gpu = None if gpu is None else GpuUse.of(gpu)
        self._network: tuple[float, Any] | None = None
        self._writer: JsonlWriter | None = None
        self._periodic = Periodic(every, self._write, "setpoint-system")

    def __enter__(self) -> Self:
        # The first call only starts the measurement.
        self._psutil.cpu_percent()
        self._process.cpu_percent()
        self._network = time.monotonic(), self._psutil.net_io_counters()
        self._periodic.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._periodic.end()
        if self._writer is not None:
            self._writer.close()

    def sample(self) -> dict[str, Any]:
        """Sample system utilization; percentages and rates since the previous sample.

        Returns:
            bytes, percent (of one core for the process, of all for the machine) and bytes per
            second; unsupported values are omitted.
        """
        psutil, memory = self._psutil, self._psutil.virtual_memory()
        row: dict[str, Any] = {
            "cpu_percent": psutil.cpu_percent(),
            "process_cpu_percent": self._process.cpu_percent(),
            "process_rss": self._process.memory_info().rss,
            "memory_used": memory.total - memory.available,
            "memory_total": memory.total,
            "disk_free": psutil.disk_usage(str(self.directory)).free,
        }
        before, clock, count = self._network, time.monotonic(), psutil.net_io_counters()
        if before is not None and before[1] is not None and count is not None:
            seconds = max(clock - before[0], 1e-9)
            row["network_sent"] = (count.bytes_sent - before[1].bytes_sent) / seconds
            row["network_received"] = (count.bytes_recv - before[1].bytes_recv) / seconds
        self._network = clock, count
        return row if self._gpu is None else row | self._gpu.sample()

    def _write(self) -> None:
        try:
            if self._writer is None:
                self._writer = JsonlWriter(self.path)
            row = {"kind": "system", "time": now(), **self.sample()}
            self.waiting.append(row)
            self._writer.write(row)
        except (SetpointError, OSError, self._psutil.Error) as error:
            self._periodic.end()
            self.note(f"tracking.system: sampling stopped: {error}")


class GpuUse:
    """Utilization of a GPU from NVML; unsupported readings are omitted."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle

    @classmethod
    def of(cls, uuid: str) -> Self | None:
        """Find a GPU; None without NVML or its package."""
        try:
            nvml: Any = import_module("pynvml")
            nvml.nvmlInit()
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
        except ImportError:
            return None
        except Exception as error:
            if type(error).__module__.startswith("pynvml"):
                return None
            raise

    def sample(self) -> dict[str, Any]:
        """Percentage of time that kernels ran, bytes, watts and degrees Celsius."""
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
            with suppress(nvml.NVMLError):
                row[name] = read()
        return row


class GpuHealthCallback(Callback):
    """Checks the GPU of each rank at the start and periodically, and reports new problems."""

    phase = Phase.TIDY

    def __init__(self, config: GpuHealthCheck) -> None:
        self.config = config
        self.health: GpuHealth | None = None

    def opened(self, run: Run, stack: ExitStack) -> None:
        """Store the run to report to."""
        self.events, self.note = run.events, run.progress.note

    def start(self, loop: Loop) -> None:
        """Find the GPU, and check it.

        Raises:
            SetpointError: NVML, or its Python package, is missing.
        """
        uuid = str(torch.cuda.get_device_properties(loop.components.device).uuid)
        self.health = GpuHealth(uuid, self.config.max_temperature)
        self.check(loop)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Check if due."""
        if loop.is_due(self.config.every):
            self.check(loop)

    def close(self, loop: Loop) -> None:
        """Shut down NVML."""
        if self.health is not None:
            self.health.close()

    def check(self, loop: Loop) -> None:
        """Write an event and a line for each new problem on any rank."""
        assert self.health is not None
        step = loop.position.step
        for rank, problems in enumerate(loop.components.world.all_of(self.health.new_problems())):
            for problem in problems:
                self.events.write("gpu_health", step=step, rank=rank, problem=problem)
                self.note(f"step {step}: the GPU of rank {rank}: {problem}")


class GpuHealth:
    """Checks a GPU; reports a persistent problem once.

    Arguments:
        uuid: the UUID of the GPU, independent of `CUDA_VISIBLE_DEVICES`.
        hot: lowest temperature to report, in degrees Celsius.

    Raises:
        SetpointError: NVML, or its Python package, is missing.
    """

    def __init__(self, uuid: str, hot: int) -> None:
        try:
            self.nvml: Any = import_module("pynvml")
        except ModuleNotFoundError:
            raise SetpointError(
                "resilience.gpu_health needs the package nvidia-ml-py: pip install nvidia-ml-py"
            ) from None
        self.hot = hot
        try:
            self.nvml.nvmlInit()
            name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
            self.handle = self.nvml.nvmlDeviceGetHandleByUUID(name)
        except self.nvml.NVMLError as error:
            raise SetpointError(
                f"resilience.gpu_health: NVML does not answer: {error}\nValid: null"
            ) from None
        self._reported: set[str] = set()
        self._events = self._register()

    def new_problems(self) -> list[str]:
        """Problems that are new since the last call."""
        problems = dict(self._problems())
        new = [text for kind, text in problems.items() if kind not in self._reported]
        self._reported = set(problems)
        return new

    def close(self) -> None:
        """Shut down NVML."""
        with suppress(self.nvml.NVMLError):
            if self._events is not None:
                self.nvml.nvmlEventSetFree(self._events)
            self.nvml.nvmlShutdown()

    def _problems(self) -> Iterator[tuple[str, str]]:
        nvml, unknown = self.nvml, self.nvml.NVMLError
        with suppress(unknown):
            degrees = nvml.nvmlDeviceGetTemperature(self.handle, nvml.NVML_TEMPERATURE_GPU)
            if degrees >= self.hot:
                yield (
                    "temperature",
                    f"its temperature is {degrees} C, and the limit is {self.hot} C",
                )
        with suppress(unknown):
            yield from self._throttling()
        errors = self._uncorrected()
        if errors:
            text = f"{errors} memory errors since the last reset that ECC could not correct"
            yield f"ecc {errors}", text
        with suppress(unknown, ValueError, TypeError):
            _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(self.handle)
            if failed:
                yield "rows", "rows of its memory could not be remapped: it must be replaced"
            elif pending:
                yield "rows", "rows of its memory are waiting to be remapped by a reset"
        for xid in self._xids():
            yield f"xid {xid}", f"the driver reports Xid {xid}"

    def _throttling(self) -> Iterator[tuple[str, str]]:
        reasons = self.nvml.nvmlDeviceGetCurrentClocksEventReasons(self.handle)
        for name, why in THROTTLING.items():
            if reasons & getattr(self.nvml, name, 0):
                yield name, f"its clocks are slowed down {why}"

    def _uncorrected(self) -> int | None:
        """Uncorrected memory errors since the driver was loaded; None if not counted."""
        with suppress(self.nvml.NVMLError):
            return self.nvml.nvmlDeviceGetTotalEccErrors(
                self.handle,
                self.nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                self.nvml.NVML_VOLATILE_ECC,
            )
        return None

    def _register(self) -> Any:
        """Register for critical Xid errors with NVML; None if unsupported."""
        with suppress(self.nvml.NVMLError):
            events = self.nvml.nvmlEventSetCreate()
            kind = self.nvml.nvmlEventTypeXidCriticalError
            self.nvml.nvmlDeviceRegisterEvents(self.handle, kind, events)
            return events
        return None

    def _xids(self) -> Iterator[int]:
        """The errors since the last call."""
        with suppress(self.nvml.NVMLError):  # a timeout: there are no more
            while self._events is not None:
                yield int(self.nvml.nvmlEventSetWait_v2(self._events, 0).eventData)
