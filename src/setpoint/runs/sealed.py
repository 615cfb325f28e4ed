"""Whether rows of metrics and checkpoints are those that the chain of a run has sealed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from setpoint.checkpoint.layout import MANIFEST, list_checkpoints
from setpoint.track.chain import CHAIN, HEAD, Sealed, read_chain, row_digest
from setpoint.track.jsonl import read_jsonl

METRICS = "metrics.jsonl"


@dataclass(slots=True)
class Seal:
    """What the chain of a run says of its record.

    Arguments:
        head: the hash of its last link; None where there is no chain.
        rows: how many rows of metrics are sealed.
        checkpoints: how many of the checkpoints that are there are.
        problems: what is not as it was sealed.
        notes: what is not sealed.
    """

    head: str | None = None
    rows: int = 0
    checkpoints: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify_chain(run: Path) -> Seal:
    """Compare the rows of metrics and the manifests of checkpoints with the chain of a run.

    The bytes of checkpoints are compared with their manifests by `setpoint checkpoint verify`.
    """
    seal = Seal()
    checkpoints = list_checkpoints(run / "checkpoints")
    try:
        chain = read_chain(run / CHAIN)
        metrics = (run / METRICS).read_bytes() if (run / METRICS).exists() else b""
    except FileNotFoundError:
        chain, metrics = None, b""
    except OSError as error:
        seal.problems.append(f"{error.filename}: {error.strerror}")
        return seal
    if chain is None:
        seal.notes.append(f"not sealed: there is no {CHAIN}, as in runs of older versions")
        chain = Sealed()
    else:
        seal.head, seal.problems = chain.head, chain.problems
        if not chain.problems or chain.rows:
            lines = metrics.split(b"\n")[:-1]
            seal.rows = sum(digest is not None for digest in chain.rows)
            seal.problems.extend(_of_rows(chain.rows, lines))
            before = len(chain.rows) - seal.rows
            if before:
                seal.notes.append(f"not sealed: {before} rows from before the chain began")
            if len(lines) > len(chain.rows):
                text = f"{len(lines) - len(chain.rows)} rows after the last link"
                if _has_ended(run):
                    seal.problems.append(f"{METRICS}: {text}, though the end of a run seals all")
                else:
                    seal.notes.append(f"not sealed: {text}")
    heads = set(chain.heads)
    unsealed: list[str] = []
    for step, path in checkpoints.items():
        try:
            digest = hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()
            anchor = (path / HEAD).read_text() if (path / HEAD).exists() else None
        except OSError as error:
            seal.problems.append(f"{path.name}: {error.filename}: {error.strerror}")
            continue
        if anchor is not None and anchor not in heads:
            seal.problems.append(
                f"{path.name} was saved when the head of the chain was {anchor[:12]}..., and "
                f"{CHAIN} has no such link: links are missing or were changed"
            )
        elif step not in chain.checkpoints:
            unsealed.append(path.name)
        elif digest not in chain.checkpoints[step]:
            seal.problems.append(f"{path.name}: its manifest is not the one that was sealed")
        else:
            seal.checkpoints += 1
    if unsealed and seal.head is not None:
        seal.notes.append(f"not sealed: {', '.join(unsealed)}")
    return seal


def _has_ended(run: Path) -> bool:
    """Whether the last session has ended in order."""
    events = run / "events.jsonl"
    for event in reversed(read_jsonl(events, []) if events.exists() else []):
        if event.get("event") in ("start", "resume", "restart", "fault", "end"):
            return event["event"] == "end"
    return False


def _of_rows(sealed: Sequence[str | None], lines: Sequence[bytes]) -> Iterator[str]:
    """Say where rows are not those that were sealed."""
    found = [row_digest(line) for line in lines]
    first = next(
        (
            place
            for place, digest in enumerate(sealed)
            if digest is not None and (place >= len(found) or digest != found[place])
        ),
        None,
    )
    if first is None:
        return
    wanted, there = list(sealed[first:]), found[first:]
    # Rows that are not sealed may come after those that are.
    left = next((n for n in range(len(there), 0, -1) if wanted and there[n - 1] == wanted[-1]), 0)
    there = there[:left] if left else there[: len(wanted)]
    while wanted and there and wanted[-1] == there[-1]:
        wanted.pop()
        there.pop()
    row = f"{METRICS}:{first + 1}"
    what = f" ({_title(lines[first])})" if first < len(lines) else ""
    last = first + max(len(there), 1)
    places = row if last == first + 1 else f"{row} to {last}"
    if not there:
        where = f", before this one{what}" if what else ", at the end"
        yield f"{row}: {_rows(len(wanted))} that {_was(wanted)} sealed {_is(wanted)} missing{where}"
    elif not wanted:
        yield f"{places}: {_rows(len(there))}{what} {_was(there)} inserted"
    elif sorted(str(each) for each in wanted) == sorted(there):
        yield f"{places}: rows were moved: they are in another order than they were sealed in"
    elif len(wanted) == len(there) == 1:
        yield f"{row}: the row{what} was changed: it is not the one that was sealed"
    else:
        yield (
            f"{places}: rows were changed: {len(there)} of them are where {len(wanted)} others "
            f"were sealed"
        )


def _rows(count: int) -> str:
    return "a row" if count == 1 else f"{count} rows"


def _was(rows: Sequence[object]) -> str:
    return "was" if len(rows) == 1 else "were"


def _is(rows: Sequence[object]) -> str:
    return "is" if len(rows) == 1 else "are"


def _title(line: bytes) -> str:
    """The kind and the step of a row."""
    try:
        row = json.loads(line)
        return f"{row['kind']}, step {row['step']}"
    except (ValueError, KeyError, TypeError):
        return "not JSON"
