"""Retraining of steps of a recorded run, and comparison of the result with the record.

The run is only read. All settings with effects outside of the new directory are disabled: tracking
services, uploads, profiles, caches of compiled code. Modules named only in the record are not
imported.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.checkpoint.folder import directory_name, list_checkpoints, point
from setpoint.checkpoint.manifest import MANIFEST, STATE, decode_state, read_manifest
from setpoint.checkpoint.places import verify_record
from setpoint.config import (
    CONFIG,
    MINIMAL,
    ORIGINS,
    RunError,
    SetpointError,
    compose,
    fingerprint,
    read_record,
)
from setpoint.files.atomic import Written, read_json, write_json
from setpoint.track.config import ENVIRONMENT
from setpoint.track.environment import environment
from setpoint.track.jsonl import read_jsonl, readable_rows
from setpoint.track.redact import declared_secrets
from setpoint.train.config import Job

KINDS = ("train", "evaluation")
"""The rows of metrics that are compared."""
LEFT_OUT = (
    "checkpoint.remote",
    "compile.artifacts",
    "profiling",
    "resilience.heartbeat",
    "tracking.alerts",
    "tracking.system",
)
"""Sections set to null for retraining."""
COMPARED = ("code", "python", "packages", "processor", "torch")
"""Facts of the environment that affect the bits of results; threads are set as recorded."""
IGNORED = ("branch", "executable", "root", "remote", "unread", "untracked", "dirty", "imported",
           "deterministic", "float32_matmul_precision", "cores", "usable_cores",
           "memory_bytes")  # fmt: skip
"""Entries of these facts to ignore: paths, and those that the configuration sets."""
MAX_THREADS = 4096
"""Maximum number of threads that a record may state."""
RERUN = "rerun_of"
"""Key in `environment.json` of a retrained run: the path of the original."""


class StepRange(NamedTuple):
    """The steps to retrain.

    Arguments:
        first: the step of the checkpoint to start from, or 0.
        last: the last step.
        start: the checkpoint to start from; None for the beginning.
        end: the checkpoint of `last`; None if it was not kept.
        record: the folder with the configuration of these steps.
    """

    first: int
    last: int
    start: Path | None
    end: Path | None
    record: Path


class RowDifference(NamedTuple):
    """A metric that differs; None for a missing row or metric."""

    step: int
    kind: str
    metric: str
    recorded: Any
    again: Any

    def line(self) -> str:
        """The difference as a human-readable line."""
        if self.metric == "row":
            where = "the record" if self.recorded else "what was trained again"
            return f"step {self.step}: only {where} has a row of {self.kind}"
        return (
            f"step {self.step}: {self.kind}.{self.metric} is {self.recorded!r} in the record and "
            f"{self.again!r} trained again"
        )


@dataclass(slots=True)
class Comparison:
    """Comparison of retrained steps with the record.

    Arguments:
        rows: number of compared rows.
        differences: in order.
        weights: lines about differing tensors in the last checkpoint; None if they could not be
            compared, which `notes` explains.
        digest: digest of the weights in the record; None if they are in several files.
        environment: differences that may change bits.
        notes: parts that were not compared, with the reason.
    """

    first: int
    last: int
    tolerance: float | None
    rows: int = 0
    differences: list[RowDifference] = field(default_factory=list)
    weights: list[str] | None = None
    digest: Written | None = None
    environment: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """True if nothing that was compared differs."""
        return not self.differences and not self.weights


def read_rows(run: Path, first: int, last: int) -> list[dict[str, Any]]:
    """Rows in a range of steps, for comparison.

    Raises:
        SetpointError: the rows cannot be read.
    """
    path = run / "metrics.jsonl"
    rows = read_jsonl(path) if path.exists() else []
    return [row for row in rows if row.get("kind") in KINDS and first < _step(row) <= last]


def _step(row: Mapping[str, Any]) -> int:
    step = row.get("step")
    return step if isinstance(step, int) else -1


def last_step(run: Path) -> int:
    """The last step in the rows or checkpoints of a run."""
    newest = read_rows(run, -1, sys.maxsize)[-1:]
    return max([0, *(row["step"] for row in newest), *list_checkpoints(run / "checkpoints")])


def choose_steps(run: Path, steps: tuple[int, int] | None = None) -> StepRange:
    """Choose steps to retrain, by default from the second-to-last checkpoint to the last.

    Arguments:
        steps: the first and the last step; None for the default.

    Raises:
        SetpointError: the run has no such steps, or its configuration changed within them.
    """
    kept, end = list_checkpoints(run / "checkpoints"), last_step(run)
    starts = [step for step, path in kept.items() if not _holds_weights_alone(path)]
    if steps is None:
        last = max(kept, default=end)
        first = max((step for step in starts if step < last), default=0)
    else:
        first, last = steps
    valid = ", ".join(map(str, sorted({0, *(step for step in starts if step < end)})))
    if first not in {0, *starts}:
        raise SetpointError(
            f"{run} has no checkpoint of step {first} to continue training from.\n"
            f"Valid: {valid}; 0 is the start of the run"
        )
    if end == 0:
        raise SetpointError(f"{run} has not trained a step yet")
    if not first < last <= end:
        raise SetpointError(
            f"{run} has no steps {first} to {last}: its record ends at step {end}.\n"
            f"Valid: a first step of {valid}, and a later last step up to {end}"
        )
    for event in readable_rows(run / "events.jsonl"):
        changed = [str(item.get("path")) for item in event.get("accepted") or ()]
        changed += ["data"] * bool(event.get("data")) * (event.get("event") == "resume")
        if changed and first < _step(event) < last:
            raise SetpointError(
                f"{run} continued with another configuration from step {_step(event)} "
                f"({', '.join(changed)}), so steps {first} to {last} mix two configurations.\n"
                f"Valid: `setpoint verify {run} --steps A:B`, before or after that step"
            )
    record = next((kept[step] for step in sorted(kept) if step >= last), run)
    if record is not run:
        verify_record(record)
    return StepRange(first, last, kept.get(first), kept.get(last), record)


def recorded_job(record: Path, more: Sequence[str] = ()) -> tuple[Job, list[str]]:
    """The configuration in a record, without side effects outside of the directory.

    Returns:
        the resolved configuration, and all overrides.

    Raises:
        SetpointError: the record cannot be read, or needs a module that was not imported.
    """
    start, _ = read_record(Job, str(record))
    flags = [
        f"{path}={'[]' if isinstance(value, list | tuple) else 'null'}"
        for path in LEFT_OUT
        if (value := _value(start, path)) not in (None, (), [])
    ]
    flags += ["tracking.trackers=[{type=jsonl}]", "checkpoint.resume=auto"]
    flags += ["resilience.time_limit=never", *more]
    return compose(Job, start, flags=flags).resolve(), flags


def prepare_directory(
    run: Path, steps: StepRange, folder: Path, today: Mapping[str, Any] | None = None
) -> None:
    """Create a run directory that continues from the first step, on the same data.

    Checkpoint files are symbolic links to those of the run, which are never written. If the
    directory is kept, its record states the environment of `today`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    facts = environment_at(run, steps.first)
    if today is not None:
        facts = {**today, "data": facts.get("data"), RERUN: str(run.resolve())}
    write_json(folder / ENVIRONMENT, facts)
    if steps.start is not None:
        place = folder / "checkpoints" / directory_name(steps.first)
        place.mkdir(parents=True)
        for entry in steps.start.iterdir():
            (place / entry.name).symlink_to(entry.resolve())
        point(folder / "checkpoints", "latest", steps.first)
    for name in (ORIGINS, MINIMAL, CONFIG):  # the last one makes it a run directory
        if (steps.record / name).exists():
            shutil.copyfile(steps.record / name, folder / name)


def is_rerun(folder: Path, run: Path) -> bool:
    """True if `prepare_directory` made this directory to rerun a whole run."""
    return environment_at(folder, 0).get(RERUN) == str(run.resolve())


def train_again(
    job: Job, flags: Sequence[str], folder: Path, last: int, imports: Sequence[str], threads: int
) -> int:
    """Train in a directory up to a step, on as many ranks as the run had.

    Arguments:
        flags: overrides that turn the record into `job`.
        imports: modules to import first if there are several ranks.
        threads: threads per process; sums on a CPU depend on their number.

    Returns:
        the exit status if a signal stopped training before that step; 0 otherwise.

    Raises:
        SetpointError: see `setpoint.train.run.train`.
    """
    ranks = job.parallel.world_size
    if ranks == 1:
        import torch

        from setpoint.train.run import train

        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            outcome = train(job, directory=folder, until=last)
        finally:
            torch.set_num_threads(before)
        return outcome.status if outcome.final_position.step < last else 0
    words = ["train", str(folder), "--nproc", str(ranks), "--until", str(last)]
    words += [f"--{flag}" for flag in flags]
    words += [word for name in imports for word in ("--import", name)]
    process = subprocess.run(
        [sys.executable, "-m", "setpoint", *words],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if process.returncode not in (0, 75, 130, 143):
        raise RunError(f"training again on {ranks} ranks failed:\n{process.stderr.strip()}")
    ends = [row for row in read_jsonl(folder / "events.jsonl") if row["event"] == "end"]
    return 0 if ends and ends[-1]["step"] >= last else process.returncode


def compare_with_record(
    run: Path, retrained: Path, steps: StepRange, tolerance: float | None
) -> Comparison:
    """Compare retrained metrics and final weights with the record.

    Arguments:
        retrained: the directory of the retraining.
        tolerance: largest relative difference of numbers; None: equal to the bit.
    """
    first, last, end = steps.first, steps.last, steps.end
    result = Comparison(first, last, tolerance)
    recorded, trained = (read_rows(directory, first, last) for directory in (run, retrained))
    result.rows = len(recorded)
    result.differences = list(_row_differences(recorded, trained, tolerance))
    trained_again = list_checkpoints(retrained / "checkpoints").get(last)
    if end is None or trained_again is None:
        where = "the record" if end is None else "what was trained again"
        result.notes.append(f"weights were not compared: {where} has no checkpoint of step {last}")
        return result
    from setpoint.checkpoint.loading import joined, load_directory
    from setpoint.checkpoint.repartition import tensor_differences

    left, right = (
        joined(load_directory(checkpoint).tensors) for checkpoint in (end, trained_again)
    )
    shared = [name for name in left if name.startswith("model/") or name in right]
    if len(shared) < len(left):
        result.notes.append(
            "only the weights of the model were compared: one side has nothing else"
        )
    result.weights = [
        f"{difference.name} differs by {difference.relative:.3g} of its norm"
        if difference.relative is not None
        else f"{difference.name} is missing or has another shape"
        for difference in tensor_differences(
            {name: left[name] for name in shared},
            {name: right[name] for name in shared if name in right},
        )
        if tolerance is None or difference.relative is None or not difference.relative <= tolerance
    ]
    files = read_manifest(end).files
    if "model.safetensors" in files:
        result.digest = files["model.safetensors"]
    else:
        result.notes.append(
            "the weights have no single checksum: they are in several files, whose checksums are "
            f"in {end / MANIFEST}"
        )
    return result


def _row_differences(
    recorded: Sequence[Mapping[str, Any]],
    trained: Sequence[Mapping[str, Any]],
    tolerance: float | None,
) -> Iterator[RowDifference]:
    """Differences in step order, except timings."""
    from setpoint.train.callbacks.log import TIMING

    sides = [{(row["step"], row["kind"]): row for row in rows} for rows in (recorded, trained)]
    for key in sorted({*sides[0], *sides[1]}, key=lambda pair: (pair[0], KINDS.index(pair[1]))):
        left, right = (side.get(key) for side in sides)
        if left is None or right is None:
            yield RowDifference(*key, "row", left is not None, right is not None)
            continue
        for name in dict.fromkeys((*left, *right)):
            a, b = left.get(name), right.get(name)
            if name not in TIMING and not _is_same(a, b, tolerance):
                yield RowDifference(*key, name, a, b)


def _is_same(a: Any, b: Any, tolerance: float | None) -> bool:
    """True if two values are equal, where NaN equals NaN and 1 does not equal True."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return all(_is_same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if repr(a) == repr(b):
        return True
    if tolerance is None or not isinstance(a, int | float) or not isinstance(b, int | float):
        return False
    return math.isclose(a, b, rel_tol=tolerance)


def environment_at(run: Path, step: int) -> dict[str, Any]:
    """The environment of a run after a step.

    Raises:
        SetpointError: the record cannot be read.
    """
    path = run / ENVIRONMENT
    try:
        facts: dict[str, Any] = read_json(path)
        if not isinstance(facts, dict):
            raise ValueError("it is not a mapping")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SetpointError(f"{path}: the record of the run cannot be read: {why}") from None
    changed: Mapping[str, Any] = {}
    for event in readable_rows(run / "events.jsonl"):
        if event.get("event") in ("start", "resume", "restart") and _step(event) <= step:
            changed = event.get("environment") or {}
    return {**facts, **{key: sides.get("today") for key, sides in changed.items()}}


def fingerprint_differences(run: Path, job: Job) -> list[str]:
    """A line if a job's fingerprint differs from the recorded one."""
    recorded = read_json(run / CONFIG).get("setpoint", {}).get("fingerprint")
    today = fingerprint(job)
    return [] if recorded == today else [f"fingerprint: {recorded} in the record, {today} here"]


def environment_now(job: Job) -> dict[str, Any]:
    """The environment of this process, with torch imported."""
    importlib.import_module("torch")
    return environment(secrets=declared_secrets(job))


def threads_of(recorded: Mapping[str, Any]) -> int:
    """The number of threads of a recorded run.

    Raises:
        SetpointError: the value is not a possible number of threads.
    """
    threads = recorded.get("threads")
    count = threads.get("torch") if isinstance(threads, Mapping) else None
    if count is None:
        return 1
    if type(count) is not int or not 1 <= count <= MAX_THREADS:
        raise SetpointError(
            f"{ENVIRONMENT}: {_shown(count)} is not a number of threads.\nValid: 1 to {MAX_THREADS}"
        )
    return count


def environment_differences(recorded: Mapping[str, Any], today: Mapping[str, Any]) -> list[str]:
    """Lines about differences between two environments that may change the bits of a result."""
    before, now = (dict(_leaves({key: facts.get(key) for key in COMPARED})) for facts in
                   (recorded, json.loads(json.dumps(today))))  # fmt: skip
    return [
        f"{name}: {_shown(before.get(name))} in the record, {_shown(now.get(name))} here"
        for name in dict.fromkeys((*before, *now))
        if before.get(name) != now.get(name)
    ]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    name = path.rpartition(".")[2]
    if path.count(".") and name in IGNORED and not path.startswith("packages."):
        return
    if name == "diff":
        digest = value.get("sha256") if isinstance(value, Mapping) else None
        if isinstance(value, str) and value:
            digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
        yield path, digest and f"uncommitted changes {digest[:12]}"
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def _value(section: Any, path: str) -> Any:
    """A value in a draft by its path; None if missing."""
    for name in path.split("."):
        fields = getattr(type(section), "__setpoint__", None)
        if fields is None or name not in fields.fields:
            return None
        section = getattr(section, name)
    return section


def _holds_weights_alone(checkpoint: Path) -> bool:
    """True if a checkpoint contains only weights; False if unreadable, which fails on use."""
    try:
        return bool(decode_state((checkpoint / STATE).read_bytes()).get("weights_only"))
    except (OSError, ValueError):
        return False
