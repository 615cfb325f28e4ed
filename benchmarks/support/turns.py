"""Measure several sides in turns, so that whatever else the machine does hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch


class Ratio(NamedTuple):
    """How many times as fast one side is as another.

    Arguments:
        median: of the ratios of neighbouring turns.
        low: their tenth percentile.
        high: their ninetieth percentile.
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f})"


class Clocks(NamedTuple):
    """Seconds of each round, by the name of the side.

    Arguments:
        wall: by the clock.
        cpu: of all threads of the process; steadier where others use the machine, and of no use
            where the work is done by a GPU.
    """

    wall: dict[str, list[float]]
    cpu: dict[str, list[float]]


def clocks_in_turns(
    sides: Mapping[str, Callable[[], object]], rounds: int, device: torch.device, warm: int = 2
) -> Clocks:
    """Run each side once a round: A B C, C B A, and so on.

    Arguments:
        sides: what to run, by name.
        rounds: measured rounds.
        device: where it runs; waited for before the clocks are read.
        warm: rounds before, which are not measured.

    Returns:
        both clocks.
    """
    clocks = Clocks({name: [] for name in sides}, {name: [] for name in sides})
    names = list(sides)
    for round_ in range(-warm, rounds):
        for name in names if round_ % 2 == 0 else reversed(names):
            _wait(device)
            wall, cpu = time.perf_counter(), time.process_time()
            sides[name]()
            _wait(device)
            if round_ >= 0:
                clocks.wall[name].append(time.perf_counter() - wall)
                clocks.cpu[name].append(time.process_time() - cpu)
    return clocks


def seconds_in_turns(
    sides: Mapping[str, Callable[[], object]], rounds: int, device: torch.device, warm: int = 2
) -> dict[str, list[float]]:
    """As `clocks_in_turns`, of which it gives the clock on the wall.

    Arguments:
        sides: what to run, by name.
        rounds: measured rounds.
        device: where it runs.
        warm: rounds before, which are not measured.

    Returns:
        seconds of each round, by name.
    """
    return clocks_in_turns(sides, rounds, device, warm).wall


def ratio(times: Mapping[str, list[float]], ours: str, theirs: str) -> Ratio:
    """Compare two sides round by round.

    Arguments:
        times: seconds of each round, by name; at least two rounds.
        ours: the side that is judged.
        theirs: the side it is compared with.

    Returns:
        above 1 where ours is faster.
    """
    pairs = [b / a for a, b in zip(times[ours], times[theirs], strict=True)]
    tenths = statistics.quantiles(pairs, n=10, method="inclusive")
    return Ratio(statistics.median(pairs), tenths[0], tenths[-1])


def misses(clocks: Clocks, ours: str, theirs: str, bound: float, device: torch.device) -> bool:
    """Whether a side is too slow.

    Arguments:
        clocks: of all rounds.
        ours: the side that is judged.
        theirs: the side it is compared with.
        bound: the least ratio of speeds.
        device: where it ran.

    Returns:
        whether the median ratio lies below the bound: by the clock, and on a CPU, which others may
        be using, by CPU time as well.
    """
    judged = [clocks.wall] if device.type == "cuda" else list(clocks)
    return all(ratio(times, ours, theirs).median < bound for times in judged)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
