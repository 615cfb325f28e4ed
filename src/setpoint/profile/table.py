"""The operators that took longest in a profile, as a table in text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch.profiler import profile

from setpoint.profile.config import Profiling

# How functions of Python are named, which a profile with stacks holds beside operators.
_PYTHON = re.compile(r"<|nn\.Module: |.*\(\d+\): ")
LONGEST = 64


def operator_table(seen: profile, section: Profiling, steps: int, unit: str = "steps") -> str:
    """Tell which operators take the time.

    The time of an operator is its own, without what it calls: the rows add up to the whole. On a
    GPU the rows are ordered by its time, which is that of the kernels that an operator starts.
    """
    found = seen.key_averages(group_by_input_shape=section.shapes)
    rows = [row for row in found if _is_operator(row)]
    on_gpu = any(row.self_device_time_total for row in rows)
    rows.sort(key=_gpu_time if on_gpu else _cpu_time, reverse=True)
    cpu, gpu = sum(map(_cpu_time, rows)), sum(map(_gpu_time, rows))
    headings = ["operator", "calls", "CPU ms", "share"]
    if on_gpu:
        headings += ["GPU ms", "share"]
    if section.flops:
        headings.append("GFLOP")
    if section.memory:
        headings.append("MB kept")
    if section.shapes:
        headings.append("shapes of inputs")
    cells = [headings]
    for row in rows[: section.top]:
        line = [row.key[:LONGEST], f"{row.count:,}", *_time(_cpu_time(row), cpu)]
        if on_gpu:
            line += _time(_gpu_time(row), gpu)
        if section.flops:
            line.append(f"{row.flops / 1e9:,.3f}" if row.flops else "-")
        if section.memory:
            kept = row.self_cpu_memory_usage + row.self_device_memory_usage
            line.append(f"{round(kept / 1e6, 2) + 0.0:,.2f}")  # what is added makes -0 a 0
        if section.shapes:
            line.append(str(row.input_shapes))
        cells.append(line)
    whole = f"{cpu / 1e3:,.1f} ms of CPU" + (f", {gpu / 1e3:,.1f} ms of GPU" if on_gpu else "")
    if section.flops:
        whole += f", {sum(row.flops for row in rows) / 1e9:,.3f} GFLOP counted"
    title = f"{steps} {unit}, {len(rows)} operators, {whole}"
    return "\n".join([title, *_aligned(cells, text_last=section.shapes)])


def _is_operator(row: Any) -> bool:
    """Whether a row is no span, no function of Python, no kernel and no allocation."""
    named = row.is_user_annotation or row.key.startswith(("ProfilerStep#", "[memory]"))
    return row.device_type.name == "CPU" and not named and not _PYTHON.match(row.key)


def _cpu_time(row: Any) -> float:
    return max(0.0, row.self_cpu_time_total)


def _gpu_time(row: Any) -> float:
    return row.self_device_time_total


def _time(microseconds: float, whole: float) -> list[str]:
    share = microseconds / whole if whole else 0.0
    return [f"{microseconds / 1e3:,.3f}", f"{share:.1%}"]


def _aligned(cells: Sequence[Sequence[str]], text_last: bool) -> list[str]:
    """Lines with columns: the first is text, and the last may be; the others are numbers."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    last = len(widths) - 1 if text_last else -1
    lines: list[str] = []
    for row in cells:
        line = [
            cell.ljust(width) if index in (0, last) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(line).rstrip())
    return lines
