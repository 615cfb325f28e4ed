"""What NVML says of the health of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from setpoint.config import SetpointError

THROTTLING = {
    "nvmlClocksEventReasonHwSlowdown": "by the hardware",
    "nvmlClocksEventReasonHwThermalSlowdown": "as it is too hot",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "by the power supply",
    "nvmlClocksEventReasonSwThermalSlowdown": "as it is too hot, by the driver",
}
"""The reasons for slower clocks that are no choice of the user's, by NVML's names."""


class GpuHealth:
    """Looks at one GPU; what does not change is said once.

    Arguments:
        uuid: of the GPU, which stays the same whatever `CUDA_VISIBLE_DEVICES` says.
        hot: degrees Celsius from which its temperature is said.

    Raises:
        SetpointError: NVML, or its Python package, is not there.
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
        self._said: set[str] = set()
        self._events = self._register()

    def look(self) -> list[str]:
        """What is wrong, where it was not so at the last look."""
        found = dict(self._problems())
        new = [text for kind, text in found.items() if kind not in self._said]
        self._said = set(found)
        return new

    def close(self) -> None:
        """Leave NVML."""
        with suppress(self.nvml.NVMLError):
            if self._events is not None:
                self.nvml.nvmlEventSetFree(self._events)
            self.nvml.nvmlShutdown()

    def _problems(self) -> Iterator[tuple[str, str]]:
        nvml, unknown = self.nvml, self.nvml.NVMLError
        with suppress(unknown):
            degrees = nvml.nvmlDeviceGetTemperature(self.handle, nvml.NVML_TEMPERATURE_GPU)
            if degrees >= self.hot:
                yield "temperature", f"its temperature is {degrees} C, and {self.hot} C is hot"
        with suppress(unknown):
            yield from self._throttling()
        errors = self._uncorrected()
        if errors:
            text = f"{errors} memory errors since the last reset that ECC could not correct"
            yield f"ecc {errors}", text
        with suppress(unknown, ValueError, TypeError):
            _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(self.handle)
            if failed:
                yield "rows", "rows of its memory could not be remapped: it has to be replaced"
            elif pending:
                yield "rows", "rows of its memory wait to be remapped, which a reset does"
        for xid in self._xids():
            yield f"xid {xid}", f"the driver reports Xid {xid}"

    def _throttling(self) -> Iterator[tuple[str, str]]:
        reasons = self.nvml.nvmlDeviceGetCurrentClocksEventReasons(self.handle)
        for name, why in THROTTLING.items():
            if reasons & getattr(self.nvml, name, 0):
                yield name, f"its clocks are slowed down {why}"

    def _uncorrected(self) -> int | None:
        """Memory errors that were not corrected since the driver was loaded; None: not counted."""
        with suppress(self.nvml.NVMLError):
            return self.nvml.nvmlDeviceGetTotalEccErrors(
                self.handle,
                self.nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                self.nvml.NVML_VOLATILE_ECC,
            )
        return None

    def _register(self) -> Any:
        """Let NVML keep critical Xid errors; None where it does not."""
        with suppress(self.nvml.NVMLError):
            events = self.nvml.nvmlEventSetCreate()
            kind = self.nvml.nvmlEventTypeXidCriticalError
            self.nvml.nvmlDeviceRegisterEvents(self.handle, kind, events)
            return events
        return None

    def _xids(self) -> Iterator[int]:
        """The errors since the last look."""
        with suppress(self.nvml.NVMLError):  # a timeout: there are no more
            while self._events is not None:
                yield int(self.nvml.nvmlEventSetWait_v2(self._events, 0).eventData)
