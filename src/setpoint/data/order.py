"""The endless order of rows: that of each source, and the sequence of all ranks' rows.

A cursor is a position in the rows of a source, epoch after epoch and group by group. A `Sampler`
has a cursor for each source and, for a mixture, a schedule that chooses the source of each row. Its
state consists of the positions of the cursors. `Deal` assigns rows to ranks, so a run may resume
with a different number of ranks or global batch size. Nothing here imports torch.

numpy guarantees the streams of its bit generators, but not the results of methods such as
`Generator.permutation`, and a resumed run must see the same rows under a newer numpy. Random
numbers and permutations are therefore computed here, as pure functions of a key and a counter.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, inf
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.corpus import Corpus, Ints, Parts

ROUNDS = 6
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def random_bits(key: str, count: int) -> npt.NDArray[np.uint64]:
    """`count` distinct random words; word i depends only on the key and i.

    Arguments:
        key: any string; different keys yield unrelated words.

    Source: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
    2014), started at the first 8 bytes of the key's SHA-256.
    """
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    words = np.arange(1, count + 1, dtype=np.uint64)
    words *= _STEP
    words += np.uint64(start)
    return _mixed(words)


def shuffled(key: str, size: int, places: Ints) -> Ints:
    """Elements of a random permutation of 0..size-1 at some positions, without computing others.

    A Feistel network over the bits of a position, with SplitMix64's finalizer as round function, is
    a bijection of 0 .. 4^h - 1 (Luby and Rackoff, 1988). Results of `size` or above are permuted
    again until they are below it (cycle walking), which gives a bijection of 0..size-1.

    Arguments:
        key: any string; different keys yield unrelated permutations.
        size: below 2^62.
        places: positions, each in 0..size-1.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    bits, mask = np.uint64(half), np.uint64(2**half - 1)
    keys = random_bits(key, ROUNDS)
    elements = places.astype(np.uint64)
    beyond = np.arange(len(elements))
    while len(beyond):
        left, right = elements[beyond] >> bits, elements[beyond] & mask
        for round_key in keys:
            left, right = right, left ^ (_mixed(right + round_key) & mask)
        elements[beyond] = left << bits | right
        beyond = beyond[elements[beyond] >= size]
    return elements.astype(np.int64)


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer, in place."""
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


class Deal(NamedTuple):
    """Assignment of a step's rows to a rank.

    Arguments:
        step_rows: rows of a step over all ranks.
        local_rows: indices of the rank's rows within the step.
        first: number of the first row of the next step.
    """

    step_rows: int
    local_rows: Sequence[int]
    first: int = 0

    def lanes(self, count: int) -> list[int]:
        """The lanes of a stream that supply a row to this rank in any step.

        Row i of the sequence belongs to lane i modulo `count`. A run starts with as many lanes as
        rows per step; if it resumes with a different number of rows, steps begin at varying lanes.
        """
        cycle = gcd(self.step_rows, count)
        slots = {(self.first + row) % cycle for row in self.local_rows}
        return [lane for lane in range(count) if lane % cycle in slots]


class EpochPosition(NamedTuple):
    """Position of the next row.

    Arguments:
        epoch_row: number of the row in its epoch, for messages.
    """

    epoch: int = 0
    epoch_row: int = 0
    group: int = 0
    row: int = 0


class EpochCursor(ABC):
    """Position in the rows of a corpus, epoch after epoch.

    The rows of a group depend only on the epoch and the group number. All ranks plan all rows. A
    batch may cross the end of an epoch, so that no rows are dropped.

    Arguments:
        length: tokens of a row, S.
        size: rows, or documents to pack, per epoch.
        group_size: rows or documents in a group; the last group may be smaller.
        key: key of the random order.
        facts: further properties of the rows that must match when a state is loaded.
    """

    is_dealt = False
    """True if a rank only knows the positions of its own rows, so states must be merged."""

    def __init__(
        self,
        corpus: Corpus,
        length: int,
        *,
        size: int,
        group_size: int,
        key: str,
        facts: Mapping[str, Any],
    ) -> None:
        self.size, self.group_size, self.key = size, group_size, key
        self.groups = -(-size // group_size)
        self.facts: dict[str, Any] = {
            "sequence_length": length,
            "tokens": len(corpus.tokens),
            "digest": corpus.digest,
            **facts,
        }
        self.next_row = EpochPosition()
        # Two: a batch which crosses into the next group needs both.
        self.group = lru_cache(maxsize=2)(self._rows)

    @abstractmethod
    def _rows(self, epoch: int, group: int) -> Parts:
        """The rows of a group."""

    @abstractmethod
    def passed(self, epoch: int, group: int, row: int) -> int:
        """Number of rows or documents before a row of a group."""

    def places(self, group: int) -> Ints:
        """Positions of a group in an epoch's order."""
        return np.arange(group * self.group_size, min((group + 1) * self.group_size, self.size))

    @property
    def epoch(self) -> float:
        """Passes over the source, with the fraction of the current one."""
        epoch, _, group, row = self.next_row
        return (epoch * self.size + self.passed(epoch, group, row)) / self.size

    def take(self, slots: Ints, local_rows: slice) -> Parts:
        """Advance by the next rows of all ranks, and return this rank's rows.

        Arguments:
            slots: (B,) numbers of the rows in the sequence of all sources.
            local_rows: the rows of this rank.
        """
        parts, done, count = list[Parts](), 0, len(slots)
        start, stop, _ = local_rows.indices(count)
        epoch, epoch_row, group, row = self.next_row
        while done < count:
            rows = self.group(epoch, group)
            first, last = row + max(start - done, 0), min(row + stop - done, len(rows))
            if first < last:
                parts.append(rows[first:last])
            taken = min(count - done, len(rows) - row)
            done, epoch_row, row = done + taken, epoch_row + taken, row + taken
            if row == len(rows):
                group, row = group + 1, 0
            if group == self.groups:
                epoch, epoch_row, group = epoch + 1, 0, 0
        self.next_row = EpochPosition(epoch, epoch_row, group, row)
        return Parts.joined(parts)

    def position(self) -> dict[str, Any]:
        """Position as a small JSON-serializable dict."""
        return self.next_row._asdict()

    def locate(
        self, state: Mapping[str, Any] | None, deal: Deal, other_data: bool = False
    ) -> EpochPosition:
        """Convert a state to a position for `move`; None: the start.

        Arguments:
            other_data: whether the data may have changed; the position is then the same row of the
                same group, or the start of the next group or epoch if there are fewer rows.

        Raises:
            SetpointError: the position does not exist.
        """
        if state is None:
            return EpochPosition()
        numbers = [state[name] for name in EpochPosition._fields]
        epoch, epoch_row, group, row = numbers
        valid = all(type(number) is int and number >= 0 for number in numbers)
        if valid and other_data and group >= self.groups:
            epoch, epoch_row, group, row = epoch + 1, 0, 0, 0
        valid = valid and group < self.groups
        rows = len(self.group(epoch, group)) if valid else 0
        if valid and other_data and row >= rows:
            epoch, group = divmod(epoch * self.groups + group + 1, self.groups)
            epoch_row, row = epoch_row if group else 0, 0
        elif not valid or row >= rows:
            raise SetpointError(
                f"data loader state: epoch {epoch!r}, group {group!r}, row {row!r} is not a "
                f"position.\nValid: epoch 0 or more, group 0 to {self.groups - 1}, and a row of "
                f"that group."
            )
        return EpochPosition(epoch, epoch_row, group, row)

    def move(self, position: EpochPosition) -> None:
        """Continue at a position."""
        self.next_row = position

    def close(self) -> None:
        """Clear cached groups."""
        self.group.cache_clear()


Rows = Any
"""Row numbers, `Parts` or `MixedRows`, depending on the sequences; sliceable."""


@dataclass(frozen=True, slots=True)
class MixedRows:
    """Rows of several sources, in the order of the sampler.

    Arguments:
        source: (B,) index of the source of each row.
        parts: rows of each source, in order.
    """

    source: Ints
    parts: tuple[Parts, ...]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: slice) -> MixedRows:
        parts = zip(self.parts, self.spans(self.source, key, len(self.parts)), strict=True)
        return MixedRows(self.source[key], tuple(rows[span] for rows, span in parts))

    @staticmethod
    def spans(source: Ints, key: slice, sources: int) -> list[slice]:
        """Slices of each source's rows that correspond to a slice of all rows."""
        start, stop, _ = key.indices(len(source))
        before = np.bincount(source[:start], minlength=sources)
        until = np.bincount(source[:stop], minlength=sources)
        return [slice(a, b) for a, b in zip(before.tolist(), until.tolist(), strict=True)]


ALL = slice(None)


class Cursor(Protocol):
    """Position in one source's endless rows, with the methods of `EpochCursor`."""

    facts: dict[str, Any]
    is_dealt: bool

    @property
    def epoch(self) -> float:
        """Passes over the source."""
        ...

    def take(self, slots: Ints, local_rows: slice) -> Parts:
        """Advance by the next rows of all ranks, and return this rank's rows."""
        ...

    def position(self) -> dict[str, Any]:
        """Position as a small JSON-serializable dict."""
        ...

    def locate(self, state: Mapping[str, Any] | None, deal: Deal, other_data: bool = False) -> Any:
        """Convert a state to a position for `move`; None: the start."""
        ...

    def move(self, position: Any) -> None:
        """Continue at a position."""
        ...

    def close(self) -> None:
        """Clear caches and close files."""
        ...


class Shares(NamedTuple):
    """Shares of the sources, starting at a row of the sequence.

    Arguments:
        shares: one per source; their sum is 1.
    """

    first: int
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MixtureSchedule:
    """Shares of a mixture's sources, and limits on their rows.

    Arguments:
        phases: by ascending first row; the first is 0.
        limits: maximum rows of each source; None: no limit.
        epoch_rows: rows per epoch over all sources; None: unknown.
        row_tokens: maximum tokens per row if shares count tokens; None: shares count rows.
    """

    names: tuple[str, ...]
    phases: Sequence[Shares]
    limits: Sequence[int | None]
    epoch_rows: int | None = None
    row_tokens: int | None = None

    def shares_at(self, row: int) -> tuple[float, ...]:
        """Shares at a row."""
        return next(phase for phase in reversed(self.phases) if phase.first <= row).shares

    def is_used_up(self, number: int, taken: int) -> bool:
        """True if a source reached its limit, which may have been higher when the run started."""
        limit = self.limits[number]
        return limit is not None and taken >= limit


ONE_SOURCE = MixtureSchedule(("",), (Shares(0, (1.0,)),), (None,))


class Sampler:
    """The endless sequence of all ranks' rows, for `Sequences.batch_of`.

    It depends only on the data, the seed and the number of rows taken, not on the number of ranks,
    workers or rows in a micro-batch.

    Each row of a mixture is taken from the source that is furthest below its share. Within a phase,
    the count of each of K sources always differs from its share by less than K rows or, with shares
    of tokens, by less than the tokens of K rows.

    Arguments:
        cursors: one per source.
        schedule: schedule of a mixture; by default for a single source.
        step_rows: rows per step; this rank may read all of them; see `deal`.
    """

    def __init__(
        self, cursors: Sequence[Cursor], schedule: MixtureSchedule = ONE_SOURCE, step_rows: int = 1
    ) -> None:
        self.cursors, self.schedule = tuple(cursors), schedule
        self.taken = [0] * len(self.cursors)
        # Rows, or tokens, of each source since the shares were last others.
        self.since = [0] * len(self.cursors)
        self.deal(step_rows, range(step_rows))

    def deal(self, step_rows: int, local_rows: Sequence[int]) -> None:
        """Assign rows of each step to this rank; must be called before any row is taken.

        Arguments:
            local_rows: indices of this rank's rows within the step.
        """
        self._deal = Deal(step_rows, local_rows)
        for cursor in self.cursors:
            cursor.move(cursor.locate(None, self._deal))

    @property
    def is_dealt(self) -> bool:
        """True if a rank only knows the positions of its own rows; see `merged_state`."""
        return any(cursor.is_dealt for cursor in self.cursors)

    @property
    def position(self) -> int:
        """Number of rows taken from all sources."""
        return sum(self.taken)

    @property
    def epoch(self) -> float:
        """Passes over the data, with the fraction of the current one.

        For a mixture: rows taken divided by all rows; with a stream: the fewest passes of any
        source.
        """
        if self.schedule.epoch_rows is None:
            return min(cursor.epoch for cursor in self.cursors)
        return self.position / self.schedule.epoch_rows

    def take(self, count: int, local_rows: slice = ALL) -> Rows:
        """Advance by the next rows of all ranks, and return this rank's rows.

        Arguments:
            local_rows: the rows of this rank.

        Raises:
            SetpointError: all sources with a share have reached their limits, or a stream cannot be
                read; earlier rows have been returned.
        """
        first, cursors = self.position, self.cursors
        if self.schedule is ONE_SOURCE:
            rows = cursors[0].take(np.arange(first, first + count), local_rows)
            self.taken[0] += count
            return rows
        drawn, by_source = list[int](), list[list[Parts]]([] for _ in cursors)
        while len(drawn) < count:
            drawn += self._draw(count - len(drawn), by_source)
        source = np.array(drawn, np.int64)
        spans = MixedRows.spans(source, local_rows, len(cursors))
        if self.schedule.row_tokens is not None:
            parts = (Parts.joined(rows)[span] for rows, span in zip(by_source, spans, strict=True))
        else:
            slots = (first + np.flatnonzero(source == number) for number in range(len(cursors)))
            triples = zip(cursors, slots, spans, strict=True)
            parts = (cursor.take(places, span) for cursor, places, span in triples)
        return MixedRows(source[local_rows], tuple(parts))

    def _draw(self, count: int, by_source: list[list[Parts]]) -> list[int]:
        """Choose the sources of up to `count` rows for which shares are constant.

        Arguments:
            by_source: receives the rows of each source if shares count tokens.
        """
        schedule, taken, first = self.schedule, self.taken, self.position
        if any(phase.first == first for phase in schedule.phases):
            self.since = [0] * len(taken)
        shares = [
            (number, share)
            for number, share in enumerate(schedule.shares_at(first))
            if share > 0 and not schedule.is_used_up(number, taken[number])
        ]
        if not shares:
            raise SetpointError(
                f"data.sources: every source was read as often as its epochs allow, after {first} "
                f"sequences.\nValid: a shorter duration, more epochs, or epochs = null for a "
                "source, which is then read as often as needed."
            )
        share_sum = sum(share for _, share in shares)
        shares = [(number, share / share_sum) for number, share in shares]
        ahead = (phase.first - first for phase in schedule.phases if phase.first > first)
        since, total = self.since, sum(self.since)
        sources: list[int] = []
        for _ in range(min([count, *ahead])):
            goal = total + (schedule.row_tokens or 1)
            _, number = max((share * goal - since[k], -k) for k, share in shares)
            number, size = -number, 1
            if schedule.row_tokens is not None:
                by_source[number].append(self.cursors[number].take(np.zeros(1, np.int64), ALL))
                size = by_source[number][-1].token_count
            sources.append(number)
            taken[number] += 1
            since[number] += size
            total += size
            if schedule.is_used_up(number, taken[number]):
                self.since = [0] * len(taken)
                break
        return sources

    def close(self) -> None:
        """Clear caches and close files; taking more rows reopens them."""
        for cursor in self.cursors:
            cursor.close()

    def state_dict(self) -> dict[str, Any]:
        """Rows taken, and each source's share and position, as a small JSON-serializable mapping.

        For a stream, it covers only the lanes of this rank; `merged_state` combines all ranks'
        states.
        """
        shares = self.schedule.shares_at(self.position)
        counts = zip(self.schedule.names, self.cursors, self.taken, self.since, shares, strict=True)
        return {
            "sources": {
                name: {
                    "taken": taken, "since": since, "share": share, **cursor.position(),
                    **cursor.facts,
                }
                for name, cursor, taken, since, share in counts
            }
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Continue from a state, with any number of ranks and rows per step.

        With `other_data`, new sources start at their beginning. Shares are counted afresh if
        sources or shares have changed since.

        Arguments:
            state: result of `state_dict` or `merged_state`, possibly read back from JSON.
            other_data: whether the data may have changed, in which case the nearest position is
                chosen.

        Raises:
            SetpointError: the state is invalid or belongs to other data; the sampler remains
                unchanged.
        """
        names, states = self.schedule.names, self._sources_of(state, other_data)
        for name, cursor in zip(names, self.cursors, strict=True):
            if name in states:
                _require_same_rows(states[name], cursor, other_data)
        new = {"taken": 0, "since": 0}
        saved = [states.get(name, new) for name in names]
        taken = [source["taken"] for source in saved]
        deal = self._deal._replace(first=sum(taken))
        positions = [
            cursor.locate(states.get(name), deal, other_data)
            for name, cursor in zip(names, self.cursors, strict=True)
        ]
        # Nothing is refused from here on.
        for cursor, position in zip(self.cursors, positions, strict=True):
            cursor.move(position)
        shares = self.schedule.shares_at(sum(taken))
        unchanged = set(states) == set(names) and all(
            source["share"] == share for source, share in zip(saved, shares, strict=True)
        )
        self.taken, self.since = (taken, [source["since"] if unchanged else 0 for source in saved])

    def _sources_of(self, state: Mapping[str, Any], other_data: bool) -> dict[str, dict[str, Any]]:
        """State of each source."""
        sources: dict[str, Any] = state.get("sources", {})
        wrong = isinstance(sources, dict) and [
            name for name, source in sources.items() if not isinstance(source, dict)
        ]
        if set(state) != {"sources"} or not isinstance(sources, dict) or not sources or wrong:
            raise SetpointError(
                f"data loader state: has the keys {sorted(state)}.\n"
                "Valid: sources, as written into checkpoints."
            )
        names = set(self.schedule.names)
        if ("" in sources) != ("" in names) or not (other_data or set(sources) == names):
            raise SetpointError(
                f"data loader state: is of {_describe_sources(sources)}, and the data now has "
                f"{_describe_sources(names)}.\nValid: the sources of the record, or a new run."
            )
        return sources


def _describe_sources(names: Collection[str]) -> str:
    """Name the sources of a mixture; data without one has a single name, which is empty."""
    return "data without a mixture" if "" in names else f"the sources {sorted(names)}"


def merged_state(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the states of all ranks, each with its own lanes of streams."""
    sources: dict[str, Any] = {}
    for name, source in states[0]["sources"].items():
        sources[name] = source
        if "lanes" in source:
            lanes = {k: v for state in states for k, v in state["sources"][name]["lanes"].items()}
            lanes = dict(sorted(lanes.items(), key=lambda item: int(item[0])))
            epoch = min(lane["epoch"] for lane in lanes.values())
            sources[name] = {**source, "epoch": epoch, "lanes": lanes}
    return {"sources": sources}


def _require_same_rows(state: Mapping[str, Any], cursor: Cursor, other_data: bool) -> None:
    """Refuse the state of a source that has other rows now.

    This is a last check: `train` compares the configurations first.

    Raises:
        SetpointError: keys or properties differ; properties of the data count only without
            `other_data`.
    """
    expected = {"taken", "since", "share", *cursor.position(), *cursor.facts}
    if set(state) != expected:
        raise SetpointError(
            f"data loader state: has the keys {sorted(state)}.\n"
            f"Valid: {sorted(expected)}, as written into checkpoints."
        )
    for key in ("taken", "since"):
        if type(state[key]) is not int or state[key] < 0:
            raise SetpointError(
                f"data loader state: {key} is {state[key]!r}.\nValid: a number of rows."
            )
    for key, current in cursor.facts.items():
        if current != state[key] and not (other_data and key in ("tokens", "digest")):
            raise SetpointError(
                f"data loader state: {key} was {state[key]} when it was saved, but is {current} "
                f"now, so it does not refer to the same rows.\n"
                f"Valid: the data, packing and seed of the record, or a new run."
            )


def describe_position(state: Mapping[str, Any]) -> str:
    """Describe the state of a `Sampler`; empty if it has no sources.

    Returns:
        text such as `epoch 2, after 38 sequences`; for a mixture, with the share of each source.
    """
    sources: dict[str, Any] = state.get("sources", {})
    if "" in sources:
        return _describe_source(sources[""])
    total = sum(source["taken"] for source in sources.values())
    parts = [
        f"{name} {source['taken'] / max(total, 1):.1%} ({_describe_source(source)})"
        for name, source in sources.items()
    ]
    return f"after {total:,} sequences: {', '.join(parts)}" if parts else ""


def _describe_source(source: Mapping[str, Any]) -> str:
    rows = source.get("epoch_row", source["taken"])
    text = f"epoch {source['epoch'] + 1}, after {rows:,} sequences"
    lanes: dict[str, Any] = source.get("lanes", {})
    for lane in list(lanes.values())[:1]:
        begin = lane["from"]
        if begin is not None:
            text += f", in the documents from {begin['file']}, row {begin.get('row', 0) + 1:,} on"
        if lane["document"]:
            text += f", {lane['document']} at token {lane['offset']:,}"
        if source["lane_count"] > 1:
            text += f" (row 1 of {source['lane_count']:,} of a step)"
    return text


class PlannedRows(NamedTuple):
    """Rows that a mixture will take; exact with one phase, otherwise within a few rows.

    Arguments:
        total: rows in total, fewer than requested if all sources reach their limits.
        sources: rows of each source.
    """

    total: float
    sources: tuple[float, ...]


def planned_rows(
    phases: Sequence[Shares], limits: Sequence[int | None], rows: float = inf
) -> PlannedRows:
    """Plan how many of the first rows come from each source.

    Arguments:
        limits: see `MixtureSchedule`.
        rows: total number; infinity: until all sources with a share reach their limits.
    """
    left = [inf if limit is None else float(limit) for limit in limits]
    taken, position = [0.0] * len(limits), 0.0
    for number, phase in enumerate(phases):
        end = min(rows, phases[number + 1].first if number + 1 < len(phases) else inf)
        while position < end:
            shares = {k: share for k, share in enumerate(phase.shares) if share and left[k] > 0}
            if not shares:
                return PlannedRows(position, tuple(taken))
            total = sum(shares.values())
            # Until the first of them is spent, or the phase ends.
            span = min(end - position, *(left[k] * total / share for k, share in shares.items()))
            for k, share in shares.items():
                spent = span * share / total
                taken[k] += spent
                left[k] = left[k] - spent if left[k] > spent * (1 + 1e-9) else 0.0
            position += span
    return PlannedRows(position, tuple(taken))


def shares_of(weights: Sequence[float], temperature: float = 1.0) -> tuple[float, ...]:
    """Shares proportional to w^(1/temperature); a weight of 0 stays 0.

    Source: Conneau et al., "Unsupervised cross-lingual representation learning at scale" (2020),
    section 3.1, with alpha = 1 / temperature.
    """
    top = max(weights)
    powers = [(weight / top) ** (1 / temperature) if weight else 0.0 for weight in weights]
    return tuple(power / sum(powers) for power in powers)
