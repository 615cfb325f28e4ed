"""`setpoint checkpoint diff` and `convert`: what reads the tensors of checkpoints."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.checkpoint.folder import list_checkpoints, readable_pointer
from setpoint.checkpoint.places import checkpoint_to_load, find_place
from setpoint.cli.checkpoint import RUN_HELP
from setpoint.cli.diff import render
from setpoint.cli.main import FAILED, Loading
from setpoint.cli.options import IMPORT, JSON, Arguments, Command, Option
from setpoint.cli.output import emit, table
from setpoint.cli.source import open_table
from setpoint.config import SetpointError, for_error, plain
from setpoint.config.record.compare import Difference, compare
from setpoint.hub.fetch import is_url

if TYPE_CHECKING:
    from setpoint.checkpoint.compare_tensors import TensorDifference, TensorSide

MAX_ROWS = 20
"""Differences of each kind that are printed without --all."""
LAYOUTS = {
    "whole": ("--frozen",),
    "divided": ("--ranks", "--frozen"),
    "huggingface": ("--dtype", "--max-shard-size"),
}
"""Layouts of converted checkpoints, with the options that each takes."""


@Command(
    "checkpoint diff",
    "A B",
    "Compare two checkpoints, of one run or of two: first the tensors that are not equal in every\n"
    "bit, by their relative difference, with 2-norms, and those that only one has or that have\n"
    "other shapes or dtypes; then the rest of the state, and the recorded configurations. Every\n"
    "byte is verified, and one tensor at a time is read. A or B may be a run, which stands for\n"
    "its newest checkpoint. The exit status is 0 if nothing differs, and 1 if something does.\n"
    + RUN_HELP.replace("RUN is", "A and B are each"),
    [
        Option("--all", f"Print all differences, also where there are more than {MAX_ROWS}."),
        JSON,
        IMPORT,
    ],
    [
        ("setpoint checkpoint diff runs/a/checkpoints/best runs/a",
         "how far the best is from the end"),
        ("setpoint checkpoint diff runs/a runs/b --json", "the ends of two runs, for a program"),
    ],
    positional=(2, 2),
)  # fmt: skip
def checkpoint_diff(arguments: Arguments) -> int:
    """Print what differs; 1 if anything does."""
    paths = [_checkpoint(path) for path in arguments.positional]
    with Loading():
        from setpoint.checkpoint.compare_tensors import state_differences, tensor_differences
        from setpoint.checkpoint.loading import joined, load_directory
        from setpoint.infer.loaded_model import add_adapter
        from setpoint.model.pretrained.base import frozen_of

    left, right = (load_directory(path) for path in paths)
    sides = [
        {
            **joined(side.tensors),
            **{f"model/{name}": each for name, each in frozen_of(path, add_adapter).items()},
        }
        for side, path in zip((left, right), paths, strict=True)
    ]
    tensors = sorted(tensor_differences(*sides), key=lambda difference: difference.order)
    state = state_differences(left.state, right.state)
    notes: list[str] = []
    rows: list[Difference] | None = None
    try:
        rows = compare([open_table(str(path), arguments, overrides=False) for path in paths])
    except SetpointError as error:
        notes.append(f"the configurations are not compared: {error}")
    facts = {
        "checkpoints": [str(path) for path in paths],
        "tensors": [_facts(difference) for difference in tensors],
        "state": [{"path": p, "a": _number(a), "b": _number(b)} for p, (a, b) in state.items()],
        "configuration": rows and [plain(row.to_json()) for row in rows],
        "notes": notes,
    }
    most = None if arguments.has("--all") else MAX_ROWS
    lines = [f"A {paths[0]}", f"B {paths[1]}"]
    lines.append(f"tensors: {len(tensors)} of {len({*sides[0], *sides[1]})} differ")
    headings = ("tensor", "shape", "dtype", "|A|", "|A - B|", "relative", "largest")
    lines += _first(headings, [_tensor_cells(difference) for difference in tensors], most)
    lines.append(f"state: {len(state)} values differ")
    cells = [[path, for_error(a, 40), for_error(b, 40)] for path, (a, b) in state.items()]
    lines += _first(("value", "A", "B"), cells, most)
    if rows is None:
        lines.append("configuration: not compared")
    else:
        lines.append(f"configuration: {len(rows)} values differ")
        lines += [*render(rows[:most], ["A", "B"]), *_hidden(rows, most)]
    emit(arguments, facts, "\n".join(lines), notes)
    return FAILED if tensors or state or rows else 0


def _checkpoint(path: str) -> Path:
    """The checkpoint at a path, or the newest of a run."""
    place = find_place(path)
    if place.only is not None:
        return place.only
    checkpoints = list_checkpoints(place.root)
    latest = readable_pointer(place.root, "latest")
    if not checkpoints:
        raise SetpointError(f"there are no checkpoints in {place.root}")
    return checkpoints[latest] if latest in checkpoints else checkpoints[max(checkpoints)]


def _first(headings: Sequence[str], rows: list[list[str]], most: int | None) -> list[str]:
    return [table(rows[:most], headings), *_hidden(rows, most)] if rows else []


def _hidden(rows: Sequence[object], most: int | None) -> list[str]:
    count = 0 if most is None else len(rows) - most
    return [f"and {count} more; --all prints them"] if count > 0 else []


def _tensor_cells(difference: TensorDifference) -> list[str]:
    a, b = difference.left, difference.right
    if a is None or b is None:
        side = a or b
        assert side is not None
        place = f"only in {'A' if a else 'B'}"
        return [difference.name, _shape(side), side.dtype, place, "", "", ""]
    shape = _shape(a) if a.shape == b.shape else f"{_shape(a)}, {_shape(b)}"
    dtype = a.dtype if a.dtype == b.dtype else f"{a.dtype}, {b.dtype}"
    numbers = (difference.norm, difference.difference, difference.relative, difference.largest)
    return [difference.name, shape, dtype, *("" if n is None else f"{n:.4g}" for n in numbers)]


def _shape(side: TensorSide) -> str:
    return "x".join(map(str, side.shape)) or "scalar"


def _facts(difference: TensorDifference) -> dict[str, Any]:
    facts = difference._asdict()
    for side in ("left", "right"):
        facts[side] = facts[side] and facts[side]._asdict()
    return {name: _number(value) for name, value in facts.items()}


def _number(value: Any) -> Any:
    """A value that JSON has; NaN and the infinities by name."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@Command(
    "checkpoint convert",
    "CHECKPOINT DIRECTORY",
    "Write a checkpoint in another layout into the new directory DIRECTORY, a few tensors at a\n"
    "time. whole: each tensor in one piece, as one process writes it; divided: rows of each in N\n"
    "files, as N ranks write them; both hold all that the checkpoint holds, are compared with it\n"
    "bit by bit, and are loaded by checkpoint.load. huggingface: the weights as `setpoint export`\n"
    "writes them. DIRECTORY is there whole at the end, or not at all.\n\n"
    "CHECKPOINT is a checkpoint, as in runs/tiny-3fa94c21/checkpoints/best, or a run, which means\n"
    "its latest. The training data is not needed.",
    [
        Option("--to", "whole, divided or huggingface.", "LAYOUT", choices=tuple(LAYOUTS)),
        Option("--ranks", "Number of files of divided, as that many ranks write.", "N", type=int),
        Option("--frozen", "Include the frozen parameters that CHECKPOINT leaves out."),
        Option("--dtype", "dtype of the weights of huggingface; default: as they are.", "FORMAT",
               choices=("fp32", "bf16", "fp16")),
        Option("--max-shard-size", "Maximum size of a weights file of huggingface in bytes.", "N",
               type=int),
    ],
    [
        ("setpoint checkpoint convert runs/tiny-3fa94c21 copy --to whole", "in one piece"),
        ("setpoint checkpoint convert copy tiny-hf --to huggingface", "for transformers"),
    ],
    positional=(2, 2),
)  # fmt: skip
def checkpoint_convert(arguments: Arguments) -> int:
    """Write the directory, and print its path."""
    layout = arguments.value("--to")
    if layout is None:
        raise SetpointError(f"--to is missing: one of {', '.join(LAYOUTS)}")
    for name in ("--ranks", "--frozen", "--dtype", "--max-shard-size"):
        if arguments.has(name) and name not in LAYOUTS[layout]:
            raise SetpointError(f"{name} has no effect with --to {layout}. Leave it out")
    source = checkpoint_to_load(arguments.positional[0])
    if is_url(arguments.positional[1]):
        raise SetpointError(
            f"{arguments.positional[1]} is a URL.\nValid: a new or empty directory on a disk"
        )
    target = Path(os.path.expanduser(arguments.positional[1]))
    ranks = arguments.integer("--ranks")
    if layout == "divided" and (ranks is None or ranks < 2):
        raise SetpointError("--to divided needs --ranks N, 2 or more")
    with Loading():
        from setpoint.checkpoint.convert import convert, require_free
        from setpoint.infer.export_weights import export
        from setpoint.infer.loaded_model import add_adapter
        from setpoint.model.pretrained.base import frozen_of
        from setpoint.model.pretrained.run import job_of, tokenizer_of
        from setpoint.model.pretrained.save import SHARD
    if layout == "huggingface":
        require_free(target)
        tokenizer = tokenizer_of(source, job_of(source).tokenizer)
        size = arguments.integer("--max-shard-size") or SHARD
        export(source, tokenizer, target, dtype=arguments.value("--dtype"), max_shard_size=size)
    else:
        frozen = frozen_of(source, add_adapter) if arguments.has("--frozen") else None
        if arguments.has("--frozen") and not frozen:
            raise SetpointError(
                f"--frozen has no effect: {source} holds all of its parameters. Leave it out"
            )
        convert(source, target, ranks, frozen)
    print(f"{source} is written to {target}")
    return 0
