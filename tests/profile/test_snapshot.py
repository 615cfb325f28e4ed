"""Snapshots of a GPU's memory: when they are recorded, and that a file is whole or not there.

What a snapshot holds is PyTorch's; a test below takes one where there is a GPU.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.config import resolve
from setpoint.profile.config import Profiling
from setpoint.profile.profiler import begin_snapshot, end_snapshot, write_snapshot

GPU, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch is told."""
    seen: list[Any] = []
    memory: Any = torch.cuda.memory
    monkeypatch.setattr(memory, "_record_memory_history", lambda **told: seen.append(told))
    monkeypatch.setattr(memory, "_dump_snapshot", lambda path: Path(path).write_text("memory"))
    return seen


def test_recorded_only_where_it_is_asked_for(calls: list[Any]) -> None:
    asked, silent = resolve(Profiling(snapshot=True)), resolve(Profiling())
    for section, device in ((silent, GPU), (asked, CPU)):
        begin_snapshot(section, device)
        end_snapshot(section, device)
    assert calls == []
    begin_snapshot(asked, GPU)
    end_snapshot(asked, GPU)
    assert calls == [{"max_entries": 100_000}, {"enabled": None}]


@pytest.mark.usefixtures("calls")
def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "steps-1-2.pickle"
    assert write_snapshot(path).read_text() == "memory"

    def breaks(path: str) -> None:
        Path(path).write_text("half")
        raise OSError("No space left on device")

    memory: Any = torch.cuda.memory
    monkeypatch.setattr(memory, "_dump_snapshot", breaks)
    with pytest.raises(OSError, match="No space"):
        write_snapshot(path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "memory"


@pytest.mark.cuda
def test_a_real_one(tmp_path: Path) -> None:
    section = resolve(Profiling(snapshot=True))
    begin_snapshot(section, GPU)
    held = torch.ones(1 << 20, device="cuda")
    found = pickle.loads(write_snapshot(tmp_path / "x.pickle").read_bytes())
    end_snapshot(section, GPU)
    sizes = [e["size"] for trace in found["device_traces"] for e in trace if "size" in e]
    assert held.nbytes in sizes
