"""`setpoint replay`: run one step of a run again, with statistics of each module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.cli.main import Loading
from setpoint.cli.options import IMPORT, JSON, Arguments, Command, Option, refuse_overrides
from setpoint.cli.output import print_notes, table
from setpoint.cli.source import open_source, run_directory_given
from setpoint.config import SetpointError, resolve
from setpoint.parallel.config import Parallel
from setpoint.track.jsonl import plain_numbers
from setpoint.track.run_directory import RunDirectory
from setpoint.train.config import Job

if TYPE_CHECKING:
    from setpoint.ops.replay import Replayed
    from setpoint.profile.modules import ModuleFigures

MOST = 60
ALL = Option("--all", f"Print every row, also where there are more than {MOST}.")
FROM_DATA = Option("--from-data", "Take the batch from the data, also where one was kept.")
COMMAND = Command(
    "replay",
    "RUN STEP",
    "Run one step of a run again, on one process, and print for each module the least, greatest,\n"
    "mean and root mean square value of its outputs, weights and their gradients, and the share\n"
    "that is not finite. The first module whose output is not finite is named, and the operation\n"
    "whose gradient is NaN, by PyTorch's anomaly detection. Loss and gradient norm are compared\n"
    "with the record. Nothing is written.\n"
    "\n"
    "The step is reached from the newest checkpoint before it by training on the batches that the\n"
    "run took. A step whose loss was not finite or a spike is run with its own batch, which the\n"
    "run keeps (resilience.bad_batches). The model is not compiled.",
    [FROM_DATA, ALL, JSON, IMPORT],
    [
        ("setpoint replay runs/tiny-3fa94c21 1207", "where its loss became NaN"),
        ("setpoint replay runs/tiny-3fa94c21 1200 --json", "any other step, for a program"),
    ],
    positional=(2, 2),
)
KINDS = {"output": "output", "output_grad": "its gradient",
         "weight": "weights", "weight_grad": "their gradient"}  # fmt: skip
FIRST = {
    "weight": "first weight",
    "output": "first output",
    "output_grad": "first gradient of an output",
    "weight_grad": "first gradient of a weight",
}
HEADINGS = ("module", "", "min", "max", "mean", "rms", "not finite")


@COMMAND
def run(arguments: Arguments) -> int:
    """Run the step, and print what it comes to."""
    refuse_overrides(arguments)
    source, text = arguments.positional
    folder = run_directory_given(source)
    if folder is None:
        raise SetpointError(f"{source} is no run directory; replay runs a step of a run again")
    if not text.isdecimal():
        raise SetpointError(f"{text} is no step.\nValid: a number, from 1")
    job = for_one_process(open_source(source, arguments, overrides=False).resolve())
    directory = RunDirectory(Path(folder), None, is_new=False)
    with Loading():
        from setpoint.ops.replay import replay
    notes: list[str] = []
    done = replay(job, directory, int(text), arguments.has(FROM_DATA.name), notes.append)
    if arguments.has(JSON.name):
        import json

        print(json.dumps(plain_numbers(_facts(done, folder, notes)), indent=2))
        return 0
    print("\n".join(_page(done, folder, None if arguments.has(ALL.name) else MOST)))
    print_notes(notes)
    return 0


def for_one_process(job: Job) -> Job:
    """The job as one process runs it: all ranks' micro-batches one after another, not compiled."""
    ranks = job.parallel.data_ranks
    draft = job.evolve(parallel=Parallel(device=job.parallel.device), compile=None)
    draft.batch.accumulation = job.batch.global_size // job.batch.micro_size
    assert draft.batch.accumulation == job.batch.accumulation * ranks
    return resolve(draft)


def _page(done: Replayed, folder: str, most: int | None) -> list[str]:
    between = done.step - 1 - done.start
    reached = f"from the checkpoint of step {done.start}" if done.start else "from the start"
    more = f", {between} step{'s' * (between != 1)} trained on the way" if between else ""
    batch = "the batch that was kept" if done.is_kept else "the batch of the data"
    lines = [f"{folder}: step {done.step} {reached}{more}, with {batch}"]
    for name, title in (("loss", "loss"), ("grad_norm", "gradient norm")):
        now = getattr(done.numbers, name)
        lines.append(f"{title}: {now!r}{_compared(now, done, name)}")
    lines += [
        f"{first} that is not finite: {_named(done, done.first[kind])}"
        for kind, first in FIRST.items()
        if kind in done.first
    ]
    if done.anomaly is not None:
        lines += [f"anomaly: {done.anomaly.error}", *done.anomaly.forward.splitlines()]
    rows = [row for each in done.modules for row in _rows(each)]
    lines += table(rows[:most], HEADINGS).splitlines()
    left = 0 if most is None else len(rows) - most
    return [*lines, *([f"and {left} more; {ALL.name} prints them"] if left > 0 else [])]


def _compared(now: float, done: Replayed, name: str) -> str:
    if done.recorded is None:
        return " (the record has no row of this step)"
    before = getattr(done.recorded, name)
    if now == before or (now != now and before != before):
        return ", as recorded"
    return f", recorded {before!r}: {abs(now - before) / abs(before):.2g} of it apart"


def _named(done: Replayed, name: str) -> str:
    (kind,) = (each.kind for each in done.modules if each.name == name)
    return f"{name} ({kind})" if name else kind


def _rows(each: ModuleFigures) -> list[list[str]]:
    rows: list[list[str]] = []
    for kind, shown in KINDS.items():
        if kind not in each.tallies:
            continue
        figures = each.tallies[kind].to_json()
        numbers = [figures[name] for name in ("min", "max", "mean", "rms")]
        texts = ["" if value is None else f"{value:.4g}" for value in numbers]
        bad = figures["non_finite"]
        rows.append([each.name or each.kind, shown, *texts, f"{bad:.2%}" if bad else "0"])
    return rows


def _facts(done: Replayed, folder: str, notes: list[str]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "run": folder,
        "step": done.step,
        "checkpoint": done.start,
        "batch": "kept" if done.is_kept else "data",
        "found": asdict(done.numbers),
        "recorded": done.recorded and asdict(done.recorded),
        "first_non_finite": done.first,
        "anomaly": done.anomaly and asdict(done.anomaly),
        "modules": [
            {
                "name": each.name,
                "type": each.kind,
                **{str(kind): tally.to_json() for kind, tally in each.tallies.items()},
            }
            for each in done.modules
        ],
        "notes": notes,
    }
