"""Peak memory of writing a checkpoint of several ranks as a Hugging Face model, or whole.

    cd benchmarks && python -m checkpoint.consolidate [--megabytes 500] [--ranks 4]

Memory is the resident set of a process of its own, above what it had with all imports done. Leaves
with status 1 if that is more than three times the largest tensor and 128 MiB, which are for pages
of libraries that are read meanwhile.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from harness import forget_peak, memory_line, options, record, run_module
from setpoint.checkpoint.repartition import convert
from setpoint.checkpoint.store import CheckpointStore
from setpoint.cli.output import table
from setpoint.config import compose, record_files
from setpoint.model import save_pretrained
from setpoint.model.build import materialize, skeleton
from setpoint.model.initialize import initialize
from setpoint.train.config import Job

WAYS = ("huggingface", "whole")
DIM, ALLOWED = 1024, 128 << 20


def make(folder: Path, megabytes: int, ranks: int) -> tuple[Path, int, int]:
    """A checkpoint in parts; its bytes, and those of the largest tensor."""
    layers = max(1, round(megabytes * 2**20 / 4 / (12 * DIM * DIM)))
    flags = [f"model.dim={DIM}", f"model.layers={layers}", "model.heads=8"]
    job = compose(Job, "tiny", flags=flags).resolve()
    model = skeleton(job.model, 257)
    materialize(model, "cpu", torch.float32)
    initialize(model, 1)
    tensors = model.state_dict()
    source = CheckpointStore(folder / "saved").save(
        1, {"model": tensors}, {}, texts=record_files(job)
    )
    convert(source, folder / "parts", ranks)
    sizes = [tensor.nbytes for tensor in tensors.values()]
    return folder / "parts", sum(sizes), max(sizes)


def measure(way: str, source: Path, target: Path) -> int:
    """Do it in this process; how much memory it took above what there was."""
    before = forget_peak()
    if way == "huggingface":
        save_pretrained(source, target)
    else:
        convert(source, target, None)
    return memory_line("VmHWM") - before


def main() -> int:
    """Print a row for each way."""
    given = options(__doc__, megabytes=500, ranks=4, one=[""])
    if given.one:
        way, source, target = given.one
        print(measure(way, Path(source), Path(target)))
        return 0
    rows: list[list[str]] = []
    missed = False
    with tempfile.TemporaryDirectory() as place:
        source, size, largest = make(Path(place), given.megabytes, given.ranks)
        bound = 3 * largest + ALLOWED
        for way in WAYS:
            words = ("--one", way, source, f"{place}/{way}")
            peak = int(run_module("checkpoint.consolidate", *words))
            missed |= peak > bound
            counts = (peak, bound, largest, size)
            rows.append([way, *(f"{n / 2**20:.1f}" for n in counts), f"{peak / size:.3f}"])
    headings = ("to", "peak MiB", "bound MiB", "largest tensor MiB", "model MiB", "peak / model")
    print(table(rows, headings))
    model = rows[0][4]
    record(given, "checkpoint.consolidate", {
        "peak memory of exporting a checkpoint of several ranks": f"{model} MiB of weights: "
        + ", ".join(f"{way} {peak} MiB" for way, peak, *_ in rows)
    })  # fmt: skip
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
