"""Verification of a run's record: rows, events and checkpoints against its chain of hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.manifest import MANIFEST
from setpoint.config import CONFIG, SetpointError, load_record
from setpoint.files.atomic import read_json, read_small
from setpoint.track.jsonl import read_jsonl, readable_rows, whole_lines
from setpoint.train.config import Job

METRICS, EVENTS = "metrics.jsonl", "events.jsonl"
CHAIN = "chain.jsonl"
"""In the run directory; `chain.py` describes and writes it."""
HEAD = "chain.txt"
"""In a checkpoint: the head of the chain when it was saved."""
DIGITS = 24
"""Hexadecimal digits of a row's digest: 96 bits of its SHA-256."""
MOST_ROWS = 10_000_000
"""Maximum number of rows from before a chain, which bounds memory for a forged number."""


@dataclass(slots=True)
class Seal:
    """Result of verifying a run's record against its chain.

    Arguments:
        head: hash of the last link; None without a chain.
        rows, events, checkpoints: numbers of sealed rows, events and checkpoints.
        problems: differences from the chain.
        notes: unsealed rows, events and checkpoints.
    """

    head: str | None = None
    rows: int = 0
    events: int = 0
    checkpoints: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Sealed:
    """Combined content of a chain's links.

    Arguments:
        rows: the digests of the first rows of `metrics.jsonl`; None for rows written before the
            chain.
        events: likewise for `events.jsonl`.
        checkpoints: the digests of manifests by step, since rows before the step were last dropped.
        heads: the hash of each link.
        fingerprints: the fingerprints of the sessions.
        problems: problems of the links, as sentences.
    """

    rows: list[str | None] = field(default_factory=list)
    events: list[str | None] = field(default_factory=list)
    checkpoints: dict[int, set[str]] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    fingerprints: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    @property
    def head(self) -> str | None:
        """The hash of the last link; None if there are no links."""
        return self.heads[-1] if self.heads else None


def read_chain(path: Path) -> Sealed:
    """Read a chain, and verify that its links are connected.

    Raises:
        OSError: the chain cannot be read, or a line is too long.
    """
    sealed = Sealed()
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            _follow(sealed, number, line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = str(error) if type(error) is ValueError else "it is not a link"
            sealed.problems.append(f"{path.name}:{number}: {reason}")
            break  # later links have no predecessor
    return sealed


def _follow(sealed: Sealed, number: int, line: bytes) -> None:
    """Add a link.

    Raises:
        ValueError: the link does not follow (with the reason) or, like KeyError and TypeError, is
            not a link.
    """
    try:
        link = json.loads(line)
    except ValueError:
        raise ValueError("it is not a link") from None
    if json.dumps(link).encode() != line or link_hash(link) != link["hash"]:
        raise ValueError("the link was changed: it does not match its own hash")
    if link["link"] != number or link["previous"] != sealed.head:
        raise ValueError(
            f"link {link['link']} does not follow the one before it: links are missing, were added "
            f"or moved, or a new chain begins here because the end of the one before was damaged"
        )
    where = f"{CHAIN}:{number}"
    if sealed.head is None:
        sealed.rows.extend(_before(link))
        sealed.events.extend(_before(link["events"]))
    for noun, rows, record in (
        ("rows", sealed.rows, link),
        ("events", sealed.events, link["events"]),
    ):
        _take(rows, record, noun, f"{where}: {{}} {noun}", link["time"], sealed.problems)
    if "session" in link:
        later = [step for step in sealed.checkpoints if step > link["session"]["step"]]
        for step in later:
            del sealed.checkpoints[step]
        sealed.fingerprints.add(link["session"]["fingerprint"])
    if "checkpoint" in link:
        saved = link["checkpoint"]
        sealed.checkpoints.setdefault(saved["step"], set()).add(saved["manifest"])
    sealed.heads.append(link["hash"])


def _before(record: dict[str, Any]) -> list[str | None]:
    """Placeholders of the rows from before a chain."""
    if not 0 <= record["before"] <= MOST_ROWS:
        raise ValueError(f"it counts {record['before']} rows from before the chain")
    return [None] * record["before"]


def _take(
    rows: list[str | None],
    record: dict[str, Any],
    noun: str,
    gone: str,
    time: str,
    problems: list[str],
) -> None:
    """Apply the sealed and dropped rows of a link."""
    if "cut" in record:
        del rows[record["cut"] :]
    if "missing" in record:
        problems.append(
            f"{gone.format(record['missing'])} that were sealed were missing when a session "
            f"started, at {time}"
        )
    rows.extend(record["rows"])
    if len(rows) != record["total"]:
        raise ValueError(f"the link counts {record['total']} {noun}, but there are {len(rows)}")


def row_digest(line: bytes) -> str:
    """The digest of a row's line, without the line break."""
    return hashlib.sha256(line).hexdigest()[:DIGITS]


def link_hash(link: dict[str, Any]) -> str:
    """The hash of a link's JSON, without the field `hash`."""
    bare = {name: value for name, value in link.items() if name != "hash"}
    return hashlib.sha256(json.dumps(bare).encode()).hexdigest()


def record_problems(run: Path) -> list[str]:
    """Problems of a record: a changed configuration, or damaged rows and events."""
    problems: list[str] = []
    try:
        load_record(Job, str(run))
    except SetpointError as error:
        problems.append(str(error))
    for name in ("events.jsonl", "metrics.jsonl"):
        try:
            rows = read_jsonl(run / name, problems) if (run / name).exists() else []
        except SetpointError as error:
            problems.append(str(error))
            continue
        if name == "metrics.jsonl":
            problems += _order_problems(rows)
    return problems


def _order_problems(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The first row without a step, or with a lower step than an earlier row of its kind."""
    last: dict[str, int] = {}
    for row in rows:
        kind, step = str(row.get("kind")), row.get("step")
        if not isinstance(step, int):
            return [f"metrics.jsonl: a row of {kind} has no step"]
        if step < last.get(kind, 0):
            return [f"metrics.jsonl: a row of {kind} at step {step} comes after step {last[kind]}"]
        last[kind] = step
    return []


def verify_chain(run: Path) -> Seal:
    """Verify rows, events, checkpoint manifests and the fingerprint against a run's chain.

    `setpoint checkpoint verify` compares the bytes of checkpoints with their manifests.
    """
    seal = Seal()
    checkpoints = list_checkpoints(run / "checkpoints")
    try:
        chain = read_chain(run / CHAIN)
    except FileNotFoundError:
        seal.notes.append(f"not sealed: there is no {CHAIN}")
        chain = Sealed()
    except OSError as error:
        seal.problems.append(f"{CHAIN}: {error.strerror}")
        return seal
    else:
        seal.head, seal.problems = chain.head, chain.problems
        if not chain.problems or chain.rows:
            later = _of_file(run / METRICS, chain.rows, "rows", seal)
            if later and _has_ended(run):
                text = f"{later} rows after the last link, although the end of a run seals all rows"
                seal.problems.append(f"{METRICS}: {text}")
            elif later:
                seal.notes.append(f"not sealed: {later} rows after the last link")
            seal.rows = sum(digest is not None for digest in chain.rows)
        later = _of_file(run / EVENTS, chain.events, "events", seal)
        if later:  # of uploads, and commands such as checkpoint prune
            count = "an event" if later == 1 else f"{later} events"
            seal.notes.append(f"not sealed: {count} after the last link")
        seal.events = sum(digest is not None for digest in chain.events)
        # If the chain began later, a session may have stopped before it changed the record.
        if not chain.problems and None not in chain.rows:
            seal.problems.extend(_of_record(run / CONFIG, chain.fingerprints))
    heads = set(chain.heads)
    unsealed: list[str] = []
    for step, path in checkpoints.items():
        try:
            digest = hashlib.sha256(read_small(path / MANIFEST)).hexdigest()
            anchor = read_small(path / HEAD).decode() if (path / HEAD).exists() else None
        except OSError as error:
            seal.problems.append(f"{path.name}: {error.strerror}")
            continue
        if anchor is not None and anchor not in heads:
            seal.problems.append(
                f"{path.name} was saved when the head of the chain was {anchor[:12]}..., but "
                f"{CHAIN} has no such link: links are missing or were changed"
            )
        elif step not in chain.checkpoints:
            unsealed.append(path.name)
        elif digest not in chain.checkpoints[step]:
            seal.problems.append(f"{path.name}: its manifest differs from the sealed one")
        else:
            seal.checkpoints += 1
    if unsealed and seal.head is not None:
        seal.notes.append(f"not sealed: {', '.join(unsealed)}")
    return seal


def _of_record(path: Path, sealed: Collection[str]) -> Iterator[str]:
    """A line if no sealed session has the fingerprint in the record.

    `record_problems` reports unreadable records.
    """
    with suppress(OSError, ValueError, LookupError, TypeError):
        if (stated := read_json(path)["setpoint"]["fingerprint"]) not in sealed:
            yield f"{path.name}: no sealed session has its fingerprint, {stated}"


def _has_ended(run: Path) -> bool:
    """True if the last session ended normally."""
    for event in reversed(readable_rows(run / EVENTS)):
        if event.get("event") in ("start", "resume", "restart", "fault", "end"):
            return event["event"] == "end"
    return False


def _of_file(path: Path, sealed: Sequence[str | None], noun: str, seal: Seal) -> int:
    """Compare the rows of a file with the chain.

    Arguments:
        noun: what the rows are called in messages.
        seal: receives the problems.

    Returns:
        number of unsealed rows at the end.
    """
    try:
        digests = [row_digest(line) for line in whole_lines(path)] if path.exists() else []
    except OSError as error:
        seal.problems.append(f"{path.name}: {error.strerror}")
        return 0
    seal.problems.extend(_differences(path, noun.removesuffix("s"), sealed, digests))
    before = sum(digest is None for digest in sealed)
    if before:
        seal.notes.append(f"not sealed: {before} {noun} from before the chain began")
    return max(0, len(digests) - len(sealed))


def _differences(
    path: Path, noun: str, sealed: Sequence[str | None], digests: list[str]
) -> Iterator[str]:
    """Descriptions of differences between the digests of rows and the sealed digests."""
    first = next(
        (
            place
            for place, digest in enumerate(sealed)
            if digest is not None and (place >= len(digests) or digest != digests[place])
        ),
        None,
    )
    if first is None:
        return
    expected, written = list(sealed[first:]), digests[first:]
    # Unsealed rows may follow sealed ones.
    left = next(
        (n for n in range(len(written), 0, -1) if expected and written[n - 1] == expected[-1]), 0
    )
    written = written[:left] if left else written[: len(expected)]
    while expected and written and expected[-1] == written[-1]:
        expected.pop()
        written.pop()
    row = f"{path.name}:{first + 1}"
    title = f" ({_title(path, first)})" if first < len(digests) else ""
    last = first + max(len(written), 1)
    places = row if last == first + 1 else f"{row} to {last}"
    count = partial(_count, noun)
    if not written:
        where = f", before this one{title}" if title else ", at the end"
        verb = "is" if len(expected) == 1 else "are"
        yield f"{row}: {count(expected)} that {_was(expected)} sealed {verb} missing{where}"
    elif not expected:
        yield f"{places}: {count(written)}{title} {_was(written)} inserted"
    elif sorted(str(digest) for digest in expected) == sorted(written):
        yield f"{places}: {noun}s were moved: their order differs from the sealed order"
    elif len(expected) == len(written) == 1:
        yield f"{row}: the {noun}{title} was changed: it differs from the sealed one"
    else:
        yield (
            f"{places}: {noun}s were changed: {len(written)} of them are where "
            f"{len(expected)} others were sealed"
        )


def _count(noun: str, rows: Sequence[object]) -> str:
    if len(rows) == 1:
        return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
    return f"{len(rows)} {noun}s"


def _was(rows: Sequence[object]) -> str:
    return "was" if len(rows) == 1 else "were"


def _title(path: Path, place: int) -> str:
    """The kind and the step of a row."""
    try:
        row = json.loads(next(islice(whole_lines(path), place, None)))
        kind = row["kind"] if "kind" in row else row["event"]
        return f"{kind}, step {row['step']}" if "step" in row else f"{kind}"
    except (ValueError, KeyError, TypeError):
        return "not JSON"
