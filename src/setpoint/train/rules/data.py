"""Cross-section checks of `[data]`: the phases of a mixture, and what a stream cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Config, Problem, fields_of
from setpoint.data.sources.config import Random, SourceConfig, Text
from setpoint.train.batch import steps_before
from setpoint.units import Duration

if TYPE_CHECKING:
    from setpoint.train.config import Job


def phase_problems(job: Job) -> Iterator[Problem]:
    """Find phases that do not start after the one before, or only after the end of the run."""
    end, before, last = job.total_steps(), 0, "the run"
    phases = [(f"data.phases.{index}", phase) for index, phase in enumerate(job.data.phases)]
    if job.data.anneal is not None:
        phases.append(("data.anneal", job.data.anneal))
    for path, phase in phases:
        step = steps_before(phase.start, job.batch)
        if step <= before:
            yield Problem(
                f"{path}.start",
                f"is step {step}, and {last} starts at step {before}; starts must rise",
                valid=(f"{before + 1} steps",) if end is None or before + 1 < end else (),
                also=("batch.global_size", "batch.sequence_length")
                if phase.start.unit == "tokens"
                else (),
            )
        elif end is not None and step >= end:
            yield Problem(
                f"{path}.start",
                f"is step {step}, and the run ends after {end} steps",
                valid=(f"{end - 1} steps",) if end - 1 > before else (),
                also=("duration",),
            )
        before, last = max(before, step), path


def stream_problems(job: Job) -> Iterator[Problem]:
    """Find what needs the length of an epoch, which is not known of streamed data."""
    index = next(i for i, source in enumerate(job.data.sources) if source.is_streamed)
    for path, counts in _in_epochs(job, ""):
        if path.startswith("schedule."):
            message = "is in epochs, and how many steps an epoch of streamed data has is not known"
            valid = ("10000 steps", "1e9 tokens")
        elif job.data.is_mixture:
            message = "is in epochs, which have no end in a mixture with a streamed source"
            valid = ("10000 steps", "1e9 tokens")
        elif any(count != int(count) for count in counts):
            message = "is part of an epoch, and of streamed data only the end of an epoch is known"
            valid = ("1 epochs",)
        else:
            continue
        also = ["duration"] if path == "schedule.horizon" else []
        yield Problem(path, message, valid=valid,
                      also=(*also, f"data.sources.{index}.streaming"))  # fmt: skip


def _in_epochs(section: Config, path: str) -> Iterator[tuple[str, list[float]]]:
    """The values that are counted in epochs, by their paths."""
    for name in fields_of(section):
        value = getattr(section, name)
        items = value if isinstance(value, tuple) else (value,)
        for number, item in enumerate(items):
            here = f"{path}{name}.{number}" if isinstance(value, tuple) else f"{path}{name}"
            if isinstance(item, Config):
                yield from _in_epochs(item, f"{here}.")
                continue
            limits = item.limits if isinstance(item, Duration) else (item,)
            counts = [x.count for x in limits if getattr(x, "unit", None) == "epochs"]
            if counts:
                yield here, counts


def held_out_problems(job: Job) -> Iterator[Problem]:
    """Find a number of documents to hold out that leaves none to train on."""
    counts = [_documents(source) for source in job.data.sources]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or job.data.held_out < sum(known):
        return
    total = sum(known)
    yield Problem(
        "data.held_out",
        f"{job.data.held_out:.15g} of {total} document{'s' * (total != 1)} would leave none to "
        f"train on",
        valid=(f"1 to {total - 1}", "a share below 1") if total > 1 else ("a share below 1",),
        also=("data.sources",),
    )


def _documents(source: SourceConfig) -> int | None:
    if isinstance(source, Text) and source.filter is None and not source.streaming:
        from setpoint.data.sources.formats import text_count  # most jobs have no files

        return text_count(source)
    return source.documents if isinstance(source, Random) and source.filter is None else None


def baselines_are_dead(_: Job) -> str:
    """Say why no n-grams are counted."""
    return "n-grams are counted in whole data, and a source is streamed"
