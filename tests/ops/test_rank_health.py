"""Samples of the machine, and the health of a GPU."""

import sys
import time
from pathlib import Path

import pytest

from setpoint.ops.rank_health import GpuHealth, SystemSampler
from setpoint.track.jsonl import read_jsonl

from ..support.snapshots import refused
from .nvml_stand_in import nvml_stand_in

psutil = pytest.importorskip("psutil")


def test_samples(tmp_path: Path) -> None:
    lines: list[str] = []
    file = tmp_path / "system.jsonl"
    with nvml_stand_in(), SystemSampler(0.02, file, tmp_path, "GPU-1", lines.append) as sampler:
        while len(sampler.waiting) < 3:
            time.sleep(0.01)
    rows = read_jsonl(file)
    assert rows == list(sampler.waiting) and not lines
    for row in rows:
        assert row["kind"] == "system" and 0 <= row["cpu_percent"] <= 100
        assert 1e6 < row["process_rss"] < row["memory_total"] and row["disk_free"] > 0
        assert row["network_sent"] >= 0
        assert (row["gpu_percent"], row["gpu_temperature"]) == (83, 50)
        assert (row["gpu_memory_used"], row["gpu_memory_total"]) == (5, 8)
        assert "gpu_power" not in row


def test_a_file_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    lines: list[str] = []
    with SystemSampler(0.01, tmp_path / "no" / "x.jsonl", tmp_path, None, lines.append) as sampler:
        sampler._periodic._thread.join()
    assert len(lines) == 1 and "sampling stopped" in lines[0]


def test_a_new_problem_of_a_gpu_is_reported_once() -> None:
    with nvml_stand_in() as gpu:
        health = GpuHealth("1", hot=90)
        assert health.new_problems() == []
        gpu.degrees, gpu.reasons, gpu.uncorrected, gpu.xids = 93, 0x44, 2, [79, 48]
        assert health.new_problems() == [
            "its temperature is 93 C, and the limit is 90 C",
            "its clocks are slowed down because it is too hot",  # a cap of the power is a setting
            "2 memory errors since the last reset that ECC could not correct",
            "the driver reports Xid 79",
            "the driver reports Xid 48",
        ]
        gpu.degrees = 95
        assert health.new_problems() == []
        gpu.degrees, gpu.reasons, gpu.uncorrected, gpu.remapped = 50, 0, 3, (0, 1, 1, 0)
        assert health.new_problems() == [
            "3 memory errors since the last reset that ECC could not correct",
            "rows of its memory are waiting to be remapped by a reset",
        ]
        gpu.degrees, gpu.uncorrected, gpu.remapped = 90, None, (0, 0, 0, 0)  # no ECC any more
        assert health.new_problems() == ["its temperature is 90 C, and the limit is 90 C"]
        health.close()
        assert gpu.calls == ["init", "free", "shutdown"]


def test_without_nvml_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with nvml_stand_in(), refused():
        GpuHealth("2", hot=90)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with refused():
        GpuHealth("1", hot=90)
