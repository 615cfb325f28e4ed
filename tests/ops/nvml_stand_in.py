"""Stands in for NVML, which needs a GPU of NVIDIA's and its driver."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@dataclass
class Gpu:
    """What a GPU answers.

    Arguments:
        uncorrected: None: it has no ECC.
        xids: errors that were not asked for yet.
    """

    degrees: int = 50
    reasons: int = 0
    uncorrected: int | None = 0
    remapped: tuple[int, int, int, int] = (0, 0, 0, 0)
    xids: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


@contextmanager
def nvml_stand_in() -> Iterator[Gpu]:
    """Let `import pynvml` find one GPU, `GPU-1`."""
    gpu, nvml = Gpu(), ModuleType("pynvml")
    error = type("NVMLError", (Exception,), {})

    def found(name: str) -> Gpu:
        if name != "GPU-1":
            raise error("Not Found")
        return gpu

    def counted(handle: Gpu, *_: Any) -> int:
        if handle.uncorrected is None:
            raise error("Not Supported")
        return handle.uncorrected

    def event(*_: Any) -> Any:
        if not gpu.xids:
            raise error("Timeout")
        return SimpleNamespace(eventData=gpu.xids.pop(0))

    def unknown(handle: Gpu) -> int:
        raise error("Not Supported")

    given: dict[str, Any] = {
        "NVMLError": error,
        "nvmlInit": lambda: gpu.calls.append("init"),
        "nvmlShutdown": lambda: gpu.calls.append("shutdown"),
        "nvmlDeviceGetHandleByUUID": found,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=83),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=5, total=8),
        "nvmlDeviceGetPowerUsage": unknown,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlDeviceGetTemperature": lambda handle, _: handle.degrees,
        "nvmlClocksEventReasonHwThermalSlowdown": 0x40,
        "nvmlClocksEventReasonSwPowerCap": 0x4,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: handle.reasons,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        "nvmlDeviceGetTotalEccErrors": counted,
        "nvmlDeviceGetRemappedRows": lambda handle: handle.remapped,
        "nvmlEventTypeXidCriticalError": 8,
        "nvmlEventSetCreate": lambda: "events",
        "nvmlDeviceRegisterEvents": lambda *_: None,
        "nvmlEventSetWait_v2": event,
        "nvmlEventSetFree": lambda _: gpu.calls.append("free"),
    }
    vars(nvml).update(given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", nvml)
        yield gpu
