"""A trace is whole or not there, and is what torch has recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile

from setpoint.config import resolve
from setpoint.profile import profiler
from setpoint.profile.config import Profiling
from setpoint.profile.profiler import drop_staged, traces_of, write_trace

from .traces import read_trace


def test_where_traces_lie(tmp_path: Path) -> None:
    section = resolve(Profiling())
    assert traces_of(section, tmp_path / "run") == tmp_path / "run" / "traces"
    shared = resolve(Profiling(directory=tmp_path / "shared"))
    assert traces_of(shared, tmp_path / "run") == tmp_path / "shared" / "run"


def product(memory: bool = False) -> profile:
    with profile(profile_memory=memory) as seen:
        torch.mm(torch.ones(8, 16), torch.ones(16, 4))
    return seen


@pytest.mark.parametrize("head", [1 << 16, 1])
def test_what_torch_has_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: int
) -> None:
    seen: Any = product()
    monkeypatch.setattr(profiler, "HEAD", head)
    found = read_trace(write_trace(seen, tmp_path / "steps-1-1.json.gz", memory=False))
    assert [event["name"] for event in found].count("aten::mm") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["steps-1-1.json.gz"]


def test_allocations_are_curves(tmp_path: Path) -> None:
    found = read_trace(write_trace(product(True), tmp_path / "a.json.gz", memory=True))
    curve = [event for event in found if event["ph"] == "C"]
    assert {event["name"] for event in curve} == {f"cpu bytes {profiler.COUNTER}"}
    # The same as torch's own instants, whose total also counts what was there before.
    instants = [event for event in found if event["name"] == "[memory]"]
    assert len(curve) == len(instants)
    before = instants[0]["args"]["Total Allocated"] - instants[0]["args"]["Bytes"]
    totals = [event["args"]["Total Allocated"] - before for event in instants]
    assert [event["args"]["bytes"] for event in curve] == totals
    for ours, theirs in zip(curve, instants, strict=True):
        assert ours["ts"] == pytest.approx(theirs["ts"], abs=1.0)


def test_half_a_trace_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(profiler.shutil, "copyfileobj", breaks)
    with pytest.raises(OSError, match="No space"):
        write_trace(product(), tmp_path / "steps-1-1.json.gz", memory=False)
    assert list(tmp_path.iterdir()) == []


def test_half_files_go(tmp_path: Path) -> None:
    for name in ("steps-1-1.json.gz.tmp-7", "steps-1-1.json.gz.tmp-7.json", "steps-2-2.json.gz"):
        (tmp_path / name).write_text(json.dumps({}))
    drop_staged(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["steps-2-2.json.gz"]
