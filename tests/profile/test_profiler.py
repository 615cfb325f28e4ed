"""Which steps are recorded, and what is left on disk."""

import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile, record_function

from setpoint.config import RunError, resolve
from setpoint.parallel.config import Parallel
from setpoint.profile import profiler
from setpoint.profile.config import Profiling, rank_problems
from setpoint.profile.profiler import (
    CHATTER,
    Cycle,
    StepProfiler,
    begin_snapshot,
    end_snapshot,
    operator_table,
    without_chatter,
    write_snapshot,
    write_trace,
)

from ..support.snapshots import refused
from .traces import read_trace, recording, spans

CPU = torch.device("cpu")


def run(
    folder: Path, steps: int, start: int = 0, **fields: Any
) -> tuple[list[Cycle], StepProfiler]:
    """Profile steps that multiply matrices; the session is not closed."""
    found: list[Cycle] = []
    profiler = StepProfiler(resolve(Profiling(**fields)), folder, CPU, found.append)
    profiler.start(start)
    for step in range(start, start + steps):
        with record_function(f"step {step + 1}"):
            torch.mm(torch.ones(8, 16), torch.ones(16, 4))
        profiler.after_step(step + 1)
    return found, profiler


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("fields", "steps", "recorded"),
    [
        ({"skip": 2, "wait": 0, "warmup": 1, "active": 1, "repeat": 1}, 8, [(4, 4)]),
        ({"wait": 1, "warmup": 0, "active": 1, "repeat": 2}, 8, [(2, 2), (4, 4)]),
        ({"wait": 0, "warmup": 0, "active": 2, "repeat": 3}, 8, [(1, 2), (3, 4), (5, 6)]),
        ({"wait": 0, "warmup": 1, "active": 1, "repeat": None}, 6, [(2, 2), (4, 4), (6, 6)]),
    ],
)
def test_the_updates_that_are_asked_for(
    tmp_path: Path,
    fields: Any,
    steps: int,
    recorded: list[tuple[int, int]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Counted from where the session starts, and without a word of the library."""
    start = 10
    found, profiler = run(tmp_path, steps, start, **fields)
    if fields["repeat"] is not None:
        assert profiler.is_over and not recording()
    profiler.close()
    assert capfd.readouterr() == ("", "")
    assert [(c.first - start, c.last - start) for c in found] == recorded
    for cycle in found:
        assert cycle.trace is not None
        assert cycle.trace.name == f"steps-{cycle.first}-{cycle.last}.json.gz"
        expected = [f"step {step}" for step in range(cycle.first, cycle.last + 1)]
        assert spans(read_trace(cycle.trace)) == expected
    assert len(files(tmp_path)) == 2 * len(recorded)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused(RunError):
        run(tmp_path / "file" / "traces", 1)


def test_half_files_of_a_killed_process_go(tmp_path: Path) -> None:
    (tmp_path / "steps-1-1.json.gz.tmp-1").write_text("half")
    (tmp_path / "steps-1-1.json.gz.tmp-1.json").write_text("half")
    (tmp_path / "notes").write_text("mine")
    run(tmp_path, 0, wait=1)
    assert files(tmp_path) == ["notes"]


def test_no_table_on_wish(tmp_path: Path) -> None:
    found, _ = run(tmp_path, 1, wait=0, warmup=0, active=1, top=0)
    assert found[0].table == "" and found[0].table_path is None
    assert files(tmp_path) == ["steps-1-1.json.gz"]


def test_only_the_profilers_lines_are_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    with without_chatter():
        os.write(2, CHATTER + b"2026-11-22 profiler_start\n")
        print("from Python", file=sys.stderr)
        os.write(2, b"from a library\n")
        print("to standard output")
    print("after", file=sys.stderr)
    out, error = capfd.readouterr()
    assert out == "to standard output\n"
    assert error == "from Python\nfrom a library\nafter\n"


def test_what_was_printed_is_there_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), without_chatter():
        os.write(2, b"why\n")
        raise ValueError
    assert capfd.readouterr().err == "why\n"


def test_standard_error_may_be_closed(capfd: pytest.CaptureFixture[str]) -> None:
    kept = os.dup(2)
    os.close(2)
    try:
        with without_chatter():
            print("ran")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    assert capfd.readouterr() == ("ran\n", "")


GPU = torch.device("cuda")


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


def table(count: int = 3, **fields: Any) -> list[str]:
    section = resolve(Profiling(**fields))
    with profile(
        record_shapes=section.shapes,
        profile_memory=section.memory,
        with_stack=section.stacks,
        with_flops=section.flops,
    ) as seen:
        left, right = torch.ones(64, 128), torch.ones(128, 32)
        with record_function("forward"):
            kept = [left @ right for _ in range(count)]
    del kept
    return operator_table(seen, section, steps=2).splitlines()


def test_the_rows_of_a_table() -> None:
    title, headings, *rows = table()
    assert re.match(r"2 steps, \d+ operators, [\d.]+ ms of CPU$", title)
    assert headings.split() == ["operator", "calls", "CPU", "ms", "share"]
    cells = {row.split()[0]: row.split()[1:] for row in rows}
    assert cells["aten::mm"][0] == "3"
    assert not [name for name in cells if "forward" in name or "Profiler" in name]
    times = [float(row.split()[2]) for row in rows]
    assert times == sorted(times, reverse=True)
    # All operators are there, so that their shares are the whole, but for rounding.
    assert abs(sum(float(row.split()[3].rstrip("%")) for row in rows) - 100) < 0.1 * len(rows)


def test_the_columns_that_are_asked_for() -> None:
    assert len(table(top=2)) == 4
    title, headings, *rows = table(flops=True, memory=True, shapes=True)
    (row,) = [row for row in rows if row.startswith("aten::mm")]
    # 3 products of 64 x 128 and 128 x 32.
    flops = f"{3 * 2 * 64 * 128 * 32 / 1e9:.3f}"
    assert title.endswith(f"{flops} GFLOP counted")
    assert re.search(r" GFLOP +MB kept +shapes of inputs$", headings)
    kept = f"{3 * 64 * 32 * 4 / 1e6:.2f}"
    assert re.search(rf" {flops} +{kept} +\[\[64, 128\], \[128, 32\]\]$", row)
    assert not [row for row in rows if row.startswith("[memory]")]


def test_functions_of_python_are_no_operators() -> None:
    rows = table(stacks=True, top=1000)[2:]
    assert not [row for row in rows if row.startswith(("<", "nn.Module")) or ".py(" in row]
    assert any(row.startswith("aten::mm") for row in rows)


@pytest.mark.parametrize(
    ("ranks", "paths"), [((0,), []), (None, []), ((0, 1, 2), ["profiling.ranks.2"])]
)
def test_ranks(ranks: tuple[int, ...] | None, paths: list[str]) -> None:
    found = rank_problems(resolve(Profiling(ranks=ranks)), resolve(Parallel(world_size=2)))
    assert [problem.path for problem in found] == paths
