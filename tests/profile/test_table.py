"""The table of operators, against what is known of a product."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.profiler import profile, record_function

from setpoint.config import resolve
from setpoint.profile.config import Profiling
from setpoint.profile.profiler import operator_table


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


def test_the_rows() -> None:
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


def test_the_operations_of_products() -> None:
    title, _, *rows = table(flops=True)
    (row,) = [row for row in rows if row.startswith("aten::mm")]
    # 3 products of 64 x 128 and 128 x 32.
    assert row.split()[-1] == f"{3 * 2 * 64 * 128 * 32 / 1e9:.3f}"
    assert title.endswith(f"{3 * 2 * 64 * 128 * 32 / 1e9:.3f} GFLOP counted")


def test_what_operators_keep() -> None:
    _, headings, *rows = table(memory=True)
    assert headings.endswith("MB kept")
    (row,) = [row for row in rows if row.startswith("aten::mm")]
    assert row.split()[-1] == f"{3 * 64 * 32 * 4 / 1e6:.2f}"
    assert not [row for row in rows if row.startswith("[memory]")]


def test_shapes_part_operators() -> None:
    _, headings, *rows = table(shapes=True)
    assert headings.endswith("shapes of inputs")
    (row,) = [row for row in rows if row.startswith("aten::mm")]
    assert row.endswith("[[64, 128], [128, 32]]")


def test_functions_of_python_are_no_operators() -> None:
    rows = table(stacks=True, top=1000)[2:]
    assert not [row for row in rows if row.startswith(("<", "nn.Module")) or ".py(" in row]
    assert any(row.startswith("aten::mm") for row in rows)


def test_only_as_many_rows_as_are_asked_for() -> None:
    assert len(table(top=2)) == 4
