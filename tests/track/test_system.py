"""Samples of the machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from setpoint.track.jsonl import read_jsonl
from setpoint.track.system import SystemSampler

psutil = pytest.importorskip("psutil")


class NVMLError(Exception):
    """What NVML raises."""


def nvml() -> Any:
    """A stand-in, of a GPU that does not say what it draws."""

    def unknown(handle: str) -> int:
        raise NVMLError

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=83),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=5, total=8),
        nvmlDeviceGetPowerUsage=unknown,
        nvmlDeviceGetTemperature=lambda handle, sensor: 61,
    )


def test_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    lines: list[str] = []
    with SystemSampler(0.02, tmp_path / "system.jsonl", tmp_path, "GPU-1", lines.append) as sampler:
        while len(sampler.waiting) < 3:
            time.sleep(0.01)
    rows = read_jsonl(tmp_path / "system.jsonl")
    assert rows == list(sampler.waiting) and not lines
    for row in rows:
        assert row["kind"] == "system" and 0 <= row["cpu_percent"] <= 100
        assert 1e6 < row["process_rss"] < row["memory_total"] and row["disk_free"] > 0
        assert (
            row["network_sent"] >= 0 and row["gpu_percent"] == 83 and row["gpu_temperature"] == 61
        )
        assert (row["gpu_memory_used"], row["gpu_memory_total"]) == (5, 8)
        assert "gpu_power" not in row


def test_a_file_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    lines: list[str] = []
    with SystemSampler(0.01, tmp_path / "no" / "x.jsonl", tmp_path, None, lines.append) as sampler:
        sampler._thread.join()
    assert len(lines) == 1 and "no more samples are taken" in lines[0]
