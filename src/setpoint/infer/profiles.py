"""What was profiled of an inference job, for people and for other programs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.profile.profiler import Cycle
from setpoint.profile.trace import traces_of

if TYPE_CHECKING:
    from setpoint.infer.config import Inference


@dataclass(slots=True)
class Profiles:
    """What was profiled of a job.

    Arguments:
        wanted: how many cycles were asked for; None: as many as there are.
    """

    passes: int = 0
    cycles: list[Cycle] = field(default_factory=list)
    wanted: int | None = None

    def to_json(self, output: Path | None) -> dict[str, Any]:
        """The same as JSON can hold it."""
        output = None if output is None else Path(os.path.expanduser(output))
        rows: list[dict[str, Any]] = []
        for cycle in self.cycles:
            files = {"trace": cycle.trace, "table": cycle.table_path, "snapshot": cycle.snapshot}
            named = {k: _name(path, output) for k, path in files.items() if path is not None}
            lost = {} if cycle.lost is None else {"lost": cycle.lost}
            rows.append({"first": cycle.first, "last": cycle.last, **named, **lost})
        return {"passes": self.passes, "cycles": rows}

    def format_lines(self) -> list[str]:
        """The same for people."""
        lines: list[str] = []
        for cycle in self.cycles:
            lines += cycle.table.splitlines()
            what = f"profile of passes {cycle.first} to {cycle.last}"
            if cycle.trace is not None:
                lines.append(f"{what}: {cycle.trace}")
            if cycle.lost is not None:
                lines.append(f"{what} could not be written: {cycle.lost}")
        whole = sum(cycle.whole for cycle in self.cycles)
        if whole < (self.wanted or 1):
            of = "" if self.wanted is None else f" of {self.wanted}"
            lines.append(
                f"profiling: the job was over after {self.passes} passes through the model, when "
                f"{whole}{of} cycles were whole"
            )
        return lines


def folder_of(job: Inference) -> Path:
    """Where the traces of a job lie.

    Arguments:
        job: its profiling is not null; without an output the directory of that is absolute.
    """
    assert job.profiling is not None
    if job.output is None:
        return Path(os.path.expanduser(job.profiling.directory))
    return traces_of(job.profiling, Path(os.path.expanduser(job.output)))


def _name(path: Path, output: Path | None) -> str:
    return str(
        path if output is None or not path.is_relative_to(output) else path.relative_to(output)
    )
