"""Which steps are recorded, and what is left on disk."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import record_function

from setpoint.config import RunError, resolve
from setpoint.profile.config import Profiling
from setpoint.profile.profiler import Cycle, StepProfiler

from .traces import read_trace, spans

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


def recording() -> bool:
    """Whether any profiler of torch runs."""
    enabled: Any = vars(torch.autograd)["_profiler_enabled"]
    return enabled()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("fields", "steps", "recorded"),
    [
        ({"wait": 1, "warmup": 1, "active": 2}, 8, [(3, 4)]),
        ({"skip": 2, "wait": 0, "warmup": 1, "active": 1}, 8, [(4, 4)]),
        ({"wait": 1, "warmup": 0, "active": 1, "repeat": 2}, 8, [(2, 2), (4, 4)]),
        ({"wait": 0, "warmup": 0, "active": 2, "repeat": 3}, 8, [(1, 2), (3, 4), (5, 6)]),
        ({"wait": 0, "warmup": 1, "active": 1, "repeat": None}, 6, [(2, 2), (4, 4), (6, 6)]),
    ],
)
@pytest.mark.parametrize("start", [0, 10])
def test_the_updates_that_are_asked_for(
    tmp_path: Path, fields: Any, steps: int, recorded: list[tuple[int, int]], start: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, profiler = run(tmp_path, steps, start, **fields)
        profiler.close()
    assert [(c.first - start, c.last - start) for c in found] == recorded
    for cycle in found:
        assert cycle.trace is not None
        assert cycle.trace.name == f"steps-{cycle.first}-{cycle.last}.json.gz"
        expected = [f"step {step}" for step in range(cycle.first, cycle.last + 1)]
        assert spans(read_trace(cycle.trace)) == expected
    assert len(files(tmp_path)) == 2 * len(recorded)


def test_after_the_last_cycle_nothing_stays(tmp_path: Path) -> None:
    _, profiler = run(tmp_path, 2, wait=0, warmup=1, active=1)
    assert profiler.is_over
    assert not recording()
    profiler.close()


@pytest.mark.parametrize(
    ("steps", "kept"),
    [(1, None), (2, None), (3, (3, 3)), (4, (3, 4))],
)
def test_a_session_that_ends_within_a_cycle(
    tmp_path: Path, steps: int, kept: tuple[int, int] | None
) -> None:
    found, profiler = run(tmp_path, steps, wait=1, warmup=1, active=5)
    assert found == []
    assert not profiler.is_over
    profiler.close()
    assert profiler.is_over
    assert not recording()
    assert [(c.first, c.last) for c in found] == ([] if kept is None else [kept])
    if kept is not None:
        assert found[0].trace is not None
        assert spans(read_trace(found[0].trace))[0] == "step 3"
        assert not found[0].whole
        assert found[0].table.startswith(f"{kept[1] - kept[0] + 1} steps, ")
    profiler.close()
    assert len(found) <= 1


def test_a_step_that_breaks_off_is_none(tmp_path: Path) -> None:
    found, profiler = run(tmp_path, 0, wait=0, warmup=0, active=2)
    torch.ones(2)
    profiler.close()
    assert found == []
    assert files(tmp_path) == []


def test_what_is_recorded_of_operators(tmp_path: Path) -> None:
    plain, _ = run(tmp_path / "a", 1, wait=0, warmup=0, active=1)
    fields = {"shapes": True, "memory": True, "stacks": True, "flops": True}
    full, _ = run(tmp_path / "b", 1, wait=0, warmup=0, active=1, **fields)
    before, after = (read_trace(c.trace) for (c,) in (plain, full) if c.trace)

    def product(events: list[dict[str, Any]]) -> dict[str, Any]:
        (found,) = [e for e in events if e["name"] == "aten::mm"]
        return found

    assert "Input Dims" not in product(before).get("args", {})
    assert product(after)["args"]["Input Dims"][:2] == [[8, 16], [16, 4]]
    assert {e["cat"] for e in after if "cat" in e} >= {"python_function", "cpu_instant_event"}
    curve = [e for e in after if e["ph"] == "C"]
    assert curve and not [e for e in before if e["ph"] == "C"]
    # The last is what lies there when all matrices are gone, and the highest all three of them.
    assert curve[-1]["args"]["bytes"] == 0
    assert max(e["args"]["bytes"] for e in curve) == 4 * (8 * 16 + 16 * 4 + 8 * 4)
    times = [e["ts"] for e in after if e["ph"] == "X"]
    assert min(times) <= curve[0]["ts"] <= max(times)


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    # A folder stands where the file should go.
    (tmp_path / "steps-1-1.json.gz").mkdir()
    found, _ = run(tmp_path, 2, wait=0, warmup=0, active=1)
    (cycle,) = found
    assert cycle.trace is None
    assert cycle.lost is not None and "steps-1-1.json.gz" in cycle.lost
    assert files(tmp_path) == ["steps-1-1.json.gz"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="profiling.directory"):
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


def test_nothing_is_said_by_the_library(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, 3, wait=1, warmup=1, active=1)
    assert capfd.readouterr() == ("", "")
    assert os.fstat(2)
