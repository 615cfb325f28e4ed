"""What is said of the health of a GPU."""

from __future__ import annotations

import sys

import pytest

from setpoint.config import SetpointError
from setpoint.parallel.gpu_health import GpuHealth

from .nvml_stand_in import nvml_stand_in


def test_what_is_new_is_said_once() -> None:
    with nvml_stand_in() as gpu:
        health = GpuHealth("1", hot=90)
        assert health.look() == []
        gpu.degrees, gpu.reasons, gpu.uncorrected, gpu.xids = 93, 0x44, 2, [79, 48]
        assert health.look() == [
            "its temperature is 93 C, and 90 C is hot",
            "its clocks are slowed down as it is too hot",  # a cap of the power is a setting
            "2 memory errors since the last reset that ECC could not correct",
            "the driver reports Xid 79",
            "the driver reports Xid 48",
        ]
        gpu.degrees = 95
        assert health.look() == []
        gpu.degrees, gpu.reasons, gpu.uncorrected, gpu.remapped = 50, 0, 3, (0, 1, 1, 0)
        assert health.look() == [
            "3 memory errors since the last reset that ECC could not correct",
            "rows of its memory wait to be remapped, which a reset does",
        ]
        gpu.degrees, gpu.uncorrected, gpu.remapped = 90, None, (0, 0, 0, 0)  # no ECC any more
        assert health.look() == ["its temperature is 90 C, and 90 C is hot"]
        health.close()
        assert gpu.calls == ["init", "free", "shutdown"]


def test_without_nvml_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with nvml_stand_in(), pytest.raises(SetpointError, match="does not answer: Not Found"):
        GpuHealth("2", hot=90)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(SetpointError, match="pip install nvidia-ml-py"):
        GpuHealth("1", hot=90)
