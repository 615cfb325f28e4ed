"""The sides of `benchmarks/train` train the same thing, and its scripts run in small."""

import io
import json
import math
import sys
from typing import Any

import pytest

from .conftest import BENCHMARKS
from .support.forks import Forks

# Lightning is not among what the tests need; `make bench-train` runs its sides.
SIDES = ("bare", "HF Trainer")


def losses_of(load: Any, side: str, precision: str, updates: int = 6) -> list[float]:
    """Run a side in this process, with turns that are never refused."""
    answers = io.StringIO()
    sides = load("train.sides")
    turns = sides.Turns(3, updates, io.StringIO("go\n" * updates), answers)
    work = sides.prepare(turns, side, "dust", precision, "cpu")
    before = set(sys.modules)
    found = sides.SIDES[side].train(work, turns)
    # Imports would be measured as memory of training.
    late = {name.partition(".")[0] for name in sys.modules.keys() - before}
    assert not late & {"accelerate", "lightning", "transformers"}
    turns.finish(found)
    told = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert told[0] == {"ready": True}
    assert [set(row) for row in told[1:]] == [{"wall", "cpu"}] * 2 + [{"losses", "peak"}]
    assert told[-1]["losses"] == found
    assert len(found) == updates
    return found


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_all_sides_learn_the_same(load: Any, precision: str) -> None:
    loops = load("train.loops")
    ours = losses_of(load, "setpoint", precision)
    assert ours[-1] < ours[0]
    for side in SIDES:
        theirs = losses_of(load, side, precision)
        assert loops.apart(ours, theirs) <= loops.TOLERANCE[precision], side


def test_a_speed_without_equal_loss_is_void(load: Any) -> None:
    loops = load("train.loops")
    nobody: Any = None

    def worker(seconds: float, last: float) -> Any:
        return loops.Worker(nobody, [9.0, *[seconds] * 4], [9.0, *[seconds] * 4], [3.0, last], 1)

    def failures(**sides: tuple[float, float]) -> list[str]:
        workers = {"setpoint": worker(1.0, 2.0)}
        workers |= {name: worker(*given) for name, given in sides.items()}
        report = load("harness").Report("train.loops", None, [])
        loops.compare(report, "dust", "fp32", workers, "cpu")
        return report.failed

    assert failures(bare=(1.01, 2.0)) == []
    assert "below 1.0" in failures(bare=(0.9, 2.0))[0]
    (void,) = failures(bare=(1.2, 2.1))
    assert "its speed is void" in void
    # Numbers that are none agree with nothing.
    assert "apart" in failures(bare=(1.2, math.nan))[0]
    assert loops.apart([1.0], [1.0, 2.0]) == math.inf


def test_a_whole_comparison_of_two_processes(
    load: Any, monkeypatch: pytest.MonkeyPatch, forks: Forks
) -> None:
    loops = load("train.loops")
    monkeypatch.chdir(BENCHMARKS)
    monkeypatch.setattr(sys, "executable", f"{forks.programs}/python")
    monkeypatch.setitem(loops.STEPS, "dust", 2)
    monkeypatch.setattr(loops, "misses", lambda *_: False)  # of two updates each
    given = ["--models", "dust", "--precisions", "fp32", "--blocks", "2", "--sides", "bare"]
    assert loops.main([*given, "--device", "cpu"]) == 0


def test_expected_throughput_stands_beside_published_runs(load: Any, capsys: Any) -> None:
    published = load("plan.published")
    assert published.main(["--runs", "FSDP 8, compiled", "--parts"]) == 0
    out = capsys.readouterr().out
    assert "| 6,667 tokens/s |" in out
    assert "matrix products" in out
    for run in published.RUNS[1::7]:
        assert 0.6 < published.compared(run).ratio < 1.7, run.name
