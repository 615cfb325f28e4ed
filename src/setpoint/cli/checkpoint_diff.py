"""`setpoint checkpoint diff`: what differs between two checkpoints, by tensor, state and record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.checkpoint.folder import list_checkpoints, readable_pointer
from setpoint.checkpoint.places import find_place
from setpoint.cli.checkpoint import RUN_HELP
from setpoint.cli.diff import render
from setpoint.cli.main import FAILED, Loading
from setpoint.cli.options import IMPORT, JSON, Arguments, Command, Option, refuse_overrides
from setpoint.cli.output import print_notes, table
from setpoint.cli.source import open_table
from setpoint.config import (
    Difference,
    SetpointError,
    compare,
    for_error,
    plain,
)

if TYPE_CHECKING:
    from setpoint.checkpoint.compare_tensors import TensorDifference, TensorSide

MOST = 20
ALL = Option("--all", f"Print everything that differs, also where it is more than {MOST}.")
COMMAND = Command(
    "checkpoint diff",
    "A B",
    "Compare two checkpoints, of one run or of two: first the tensors that are not equal in every\n"
    "bit, by their relative difference, with 2-norms, and those that only one has or that have\n"
    "other shapes or dtypes; then the rest of the state, and the recorded configurations. Every\n"
    "byte is verified, and one tensor at a time is read. A or B may be a run, which stands for\n"
    "its newest checkpoint. The exit status is 0 if nothing differs, and 1 if something does.\n"
    + RUN_HELP.replace("RUN is", "A and B are each"),
    [ALL, JSON, IMPORT],
    [
        (
            "setpoint checkpoint diff runs/a/checkpoints/best runs/a",
            "how far the best is from the end",
        ),
        ("setpoint checkpoint diff runs/a runs/b --json", "the ends of two runs, for a program"),
    ],
    positional=(2, 2),
)
HEADINGS = ("tensor", "shape", "dtype", "|A|", "|A - B|", "relative", "largest")


@COMMAND
def run(arguments: Arguments) -> int:
    """Print what differs; 1 if anything does."""
    refuse_overrides(arguments)
    paths = [_checkpoint(path) for path in arguments.positional]
    with Loading():
        from setpoint.checkpoint.compare_tensors import state_differences, tensor_differences
        from setpoint.checkpoint.loading import joined, load_directory
        from setpoint.infer.loaded_model import add_adapter
        from setpoint.model.pretrained.base import frozen_of

    left, right = (load_directory(path) for path in paths)
    theirs, ours = (
        {
            **joined(side.tensors),
            **{f"model/{name}": each for name, each in frozen_of(path, add_adapter).items()},
        }
        for side, path in zip((left, right), paths, strict=True)
    )
    tensors = sorted(tensor_differences(theirs, ours), key=lambda each: each.order)
    state = state_differences(left.state, right.state)
    notes: list[str] = []
    rows = _configurations(paths, arguments, notes)
    if arguments.has(JSON.name):
        import json

        answer = {
            "checkpoints": [str(path) for path in paths],
            "tensors": [_facts(each) for each in tensors],
            "state": [
                {"path": path, "a": _number(a), "b": _number(b)} for path, (a, b) in state.items()
            ],
            "configuration": rows and [plain(row.to_json()) for row in rows],
            "notes": notes,
        }
        print(json.dumps(answer, indent=2))
    else:
        total = len({*theirs, *ours})
        most = None if arguments.has(ALL.name) else MOST
        print("\n".join(_page(paths, total, tensors, state, rows, most)))
        print_notes(notes)
    return FAILED if tensors or state or rows else 0


def _checkpoint(path: str) -> Path:
    """The checkpoint that a path names, or the newest of a run."""
    place = find_place(path)
    if place.only is not None:
        return place.only
    found = list_checkpoints(place.root)
    latest = readable_pointer(place.root, "latest")
    if not found:
        raise SetpointError(f"there are no checkpoints in {place.root}")
    return found[latest] if latest in found else found[max(found)]


def _configurations(
    paths: list[Path], arguments: Arguments, notes: list[str]
) -> list[Difference] | None:
    """The recorded values that differ; None where a record cannot be read, as a note says."""
    try:
        return compare([open_table(str(path), arguments, overrides=False) for path in paths])
    except SetpointError as error:
        notes.append(f"the configurations are not compared: {error}")
        return None


def _page(
    paths: list[Path],
    total: int,
    tensors: list[TensorDifference],
    state: dict[str, tuple[Any, Any]],
    rows: list[Difference] | None,
    most: int | None,
) -> list[str]:
    lines = [f"A {paths[0]}", f"B {paths[1]}", f"tensors: {len(tensors)} of {total} differ"]
    if tensors:
        lines += table([_row(each) for each in tensors[:most]], HEADINGS).splitlines()
        lines += _rest(tensors, most)
    lines.append(f"state: {len(state)} values differ")
    texts = [[path, for_error(a, 40), for_error(b, 40)] for path, (a, b) in state.items()]
    if texts:
        lines += table(texts[:most], ("value", "A", "B")).splitlines()
        lines += _rest(texts, most)
    if rows is None:
        return [*lines, "configuration: not compared"]
    lines.append(f"configuration: {len(rows)} values differ")
    return [*lines, *render(rows[:most], ["A", "B"]), *_rest(rows, most)]


def _rest(found: Sequence[object], most: int | None) -> list[str]:
    left = 0 if most is None else len(found) - most
    return [f"and {left} more; {ALL.name} prints them"] if left > 0 else []


def _row(each: TensorDifference) -> list[str]:
    a, b = each.left, each.right
    if a is None or b is None:
        here = a or b
        assert here is not None
        return [each.name, _shape(here), here.dtype, f"only in {'A' if a else 'B'}", "", "", ""]
    shape = _shape(a) if a.shape == b.shape else f"{_shape(a)}, {_shape(b)}"
    dtype = a.dtype if a.dtype == b.dtype else f"{a.dtype}, {b.dtype}"
    numbers = (each.norm, each.difference, each.relative, each.largest)
    return [each.name, shape, dtype, *("" if n is None else f"{n:.4g}" for n in numbers)]


def _shape(side: TensorSide) -> str:
    return "x".join(map(str, side.shape)) or "scalar"


def _facts(each: TensorDifference) -> dict[str, Any]:
    facts = each._asdict()
    for side in ("left", "right"):
        facts[side] = facts[side] and facts[side]._asdict()
    return {name: _number(value) for name, value in facts.items()}


def _number(value: Any) -> Any:
    """A value that JSON has; NaN and the infinities by name."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
