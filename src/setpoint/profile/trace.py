"""Chrome traces in gzip, which Perfetto opens: https://ui.perfetto.dev."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.profiler import profile

from setpoint.files.atomic import replacing
from setpoint.profile.config import Profiling

STAGED = ".tmp-"
HEAD = 1 << 16
"""Characters at the beginning of a trace in which its events begin."""
EVENTS = '"traceEvents": ['
COUNTER = "allocated since the trace began"


def write_trace(seen: profile, path: Path, memory: bool) -> Path:
    """Write the trace of a profile, whole or not at all.

    Arguments:
        path: ends in `.json.gz`; replaced if it is there.

    Raises:
        OSError, RuntimeError: if it cannot be written.
    """
    plain = path.with_name(f"{path.name}{STAGED}{os.getpid()}.json")
    try:
        seen.export_chrome_trace(str(plain))
        with replacing(path) as packed:
            # Level 1 is three times as fast as the default, and traces are long.
            with (
                plain.open(encoding="utf-8") as source,
                gzip.open(packed, "wt", compresslevel=1, encoding="utf-8") as target,
            ):
                head = source.read(HEAD)
                before, mark, after = head.partition(EVENTS)
                target.write(before + mark)
                if memory and mark:
                    target.writelines(f"\n{event}," for event in _curves(seen, before))
                target.write(after)
                shutil.copyfileobj(source, target, HEAD)
            with packed.open("rb") as file:
                os.fsync(file.fileno())
    finally:
        plain.unlink(missing_ok=True)
    return path


def drop_staged(directory: Path) -> None:
    """Remove what a killed process was about to write.

    Raises:
        OSError: if it cannot be removed.
    """
    for staged in directory.glob(f"steps-*{STAGED}*"):
        staged.unlink()


def _curves(seen: profile, head: str) -> Iterator[str]:
    """Counter events, a curve for each device.

    Kineto writes allocations as instants, which viewers do not draw.
    """
    found = re.search(r'"baseTimeNanoseconds": (\d+)', head)
    results = seen.profiler and seen.profiler.kineto_results
    if found is None or not results:
        return
    base, held = int(found[1]), dict[str, int]()
    changes: list[Any] = [event for event in results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        kind = event.device_type().name.lower()
        held[kind] = held.get(kind, 0) + event.nbytes()
        yield json.dumps(
            {
                "ph": "C",
                "name": f"{kind} bytes {COUNTER}",
                "pid": os.getpid(),
                "tid": 0,
                "ts": (event.start_ns() - base) / 1000,
                "args": {"bytes": held[kind]},
            }
        )


def traces_of(section: Profiling, run: Path) -> Path:
    """Where the traces of a run lie.

    Arguments:
        section: names a folder, in the run directory unless it is absolute.
    """
    folder = Path(os.path.expanduser(section.directory))
    return folder / run.resolve().name if folder.is_absolute() else run / folder
