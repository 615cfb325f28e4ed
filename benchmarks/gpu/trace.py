"""What a trace of torch.profiler says of a GPU: how long it idles, and which kernels it runs."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
ATTENTION = re.compile(r"flash|fmha|attention|attn|sdpa|flex", re.IGNORECASE)
STEP = "ProfilerStep#"
# What templates and namespaces put around the name of a kernel.
NOISE = re.compile(r"^void |at::native::|\(anonymous namespace\)::|\(.*$")


class Activity(NamedTuple):
    """What happened in the recorded steps.

    Arguments:
        seconds: from the begin of the first kernel to the end of the last.
        idle: share of that in which no kernel ran.
        longest_gap: seconds.
        waits: calls by which the host waits for the GPU, in a step.
        kernels: share of the kernels' time by name, the largest first.
    """

    steps: int
    seconds: float
    idle: float
    longest_gap: float
    waits: float
    kernels: dict[str, float]

    @property
    def attention(self) -> list[str]:
        """Names of the kernels of attention."""
        return [name for name in self.kernels if ATTENTION.search(name)]


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a Chrome trace, packed by gzip or not."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return json.load(file)["traceEvents"]


def activity_of(events: Iterable[Mapping[str, Any]]) -> Activity:
    """Sum up a trace; that of a CPU alone has operators in the place of kernels."""
    whole = [event for event in events if event.get("ph") == "X"]
    steps = [
        event
        for event in whole
        if event["name"].startswith(STEP) and event["cat"] == "user_annotation"
    ]
    kernels = [event for event in whole if event["cat"] in ON_GPU]
    kernels = kernels or [event for event in whole if event["cat"] == "cpu_op"]
    if not kernels or not steps:
        raise ValueError("the trace holds no kernels, or no steps")
    begin = min(event["ts"] for event in steps)
    end = max(event["ts"] + event["dur"] for event in steps)
    kernels = [event for event in kernels if event["ts"] >= begin]
    spans = merged(kernels)
    seconds = spans[-1][1] - spans[0][0]
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(spans)]
    times: Counter[str] = Counter()
    for event in kernels:
        times[short(event["name"])] += event["dur"]
    total = sum(times.values())
    waits = sum(event["name"] in WAITS and begin <= event["ts"] <= end for event in whole)
    return Activity(
        len(steps),
        seconds / 1e6,
        sum(gaps) / seconds,
        max(gaps, default=0.0) / 1e6,
        waits / len(steps),
        {name: time / total for name, time in times.most_common()},
    )


def merged(events: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """The times in which at least one of some events ran, in order."""
    spans: list[tuple[float, float]] = []
    for begin, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in events):
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    return spans


def short(name: str) -> str:
    """A kernel's name without its templates and arguments."""
    plain, depth = "", 0
    for letter in NOISE.sub("", name):
        depth += letter == "<"
        plain += letter if not depth else ""
        depth -= letter == ">"
    return plain[:80]
