"""The rows of all ranks in their order, planned in one place, before any of them is made.

A `Sampler` has a cursor in the rows of each source, and of a mixture a schedule that says which
source each row is from. Its state is the positions of the cursors; where a run resumes with other
ranks or another global batch, `Deal` says what each rank reads from there on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, inf
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.order import RowPlan
from setpoint.data.rows import MixedRows, Parts, Rows, Sequences

ALL = slice(None)


class Deal(NamedTuple):
    """The rows of each step, and which of them a rank reads.

    Arguments:
        step_rows: rows of a step on all ranks.
        own: numbers of a rank's rows within the step.
        first: row of the sequence with which the next step begins.
    """

    step_rows: int
    own: Sequence[int]
    first: int = 0

    def lanes(self, count: int) -> list[int]:
        """The lanes of a stream in which any step has a row of this rank.

        Row i of the sequence is of lane i modulo `count`. There are as many lanes as rows of a step
        when a run begins. If it resumes with steps of other rows, each begins at another lane.
        """
        cycle = gcd(self.step_rows, count)
        own = {(self.first + row) % cycle for row in self.own}
        return [lane for lane in range(count) if lane % cycle in own]


class Cursor(Protocol):
    """A position in the endless rows of one source, epoch after epoch."""

    @property
    def is_dealt(self) -> bool:
        """True if a rank knows the positions of its own rows alone, so that states are merged."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """Identity of the rows, which a state must share."""
        ...

    @property
    def epoch(self) -> float:
        """Passes over the source that were taken, with the fraction of the current one."""
        ...

    def take(self, slots: npt.NDArray[np.int64], own: slice) -> Rows:
        """Move past the next rows, and return those of this rank.

        Arguments:
            slots: (B,) their numbers in the sequence of all sources.
            own: those that this rank reads.
        """
        ...

    def position(self) -> dict[str, Any]:
        """The position; JSON-able, small."""
        ...

    def locate(self, state: Mapping[str, Any] | None, deal: Deal, other_data: bool = False) -> Any:
        """The position of a state, for `move`; None: the start.

        Arguments:
            other_data: whether the data may be another; the position is then the nearest there is.

        Raises:
            SetpointError: there is no such position.
        """
        ...

    def move(self, position: Any) -> None:
        """Go on at a position."""
        ...

    def close(self) -> None:
        """Drop caches, and close files; taking more opens them again."""
        ...


class EpochPosition(NamedTuple):
    """The row of a plan that comes next.

    Arguments:
        epoch_row: rows of the epoch before it, for people.
    """

    epoch: int = 0
    epoch_row: int = 0
    group: int = 0
    row: int = 0


class EpochCursor:
    """The rows of a plan, epoch after epoch: `Cursor`. All ranks plan all rows, at no cost.

    A batch may cross from one epoch into the next, so nothing is dropped.
    """

    is_dealt = False

    def __init__(self, sequences: Sequences, plan: RowPlan) -> None:
        self.plan, self.at = plan, EpochPosition()
        identity = sequences.identity
        self.facts = {
            "sequence_length": sequences.sequence_length,
            "tokens": identity.tokens,
            "digest": identity.digest,
            **plan.facts,
        }

    @property
    def epoch(self) -> float:
        """See `Cursor.epoch`."""
        epoch, _, group, row = self.at
        return (epoch * self.plan.size + self.plan.passed(epoch, group, row)) / self.plan.size

    def take(self, slots: npt.NDArray[np.int64], own: slice) -> Rows:
        """See `Cursor.take`."""
        plan, parts, count = self.plan, list[Any](), len(slots)
        epoch, epoch_row, group, row = self.at
        while count:
            rows = plan.group(epoch, group)
            parts.append(rows[row : row + count])
            taken = len(parts[-1])
            count, epoch_row, row = count - taken, epoch_row + taken, row + taken
            if row == len(rows):
                group, row = group + 1, 0
            if group == plan.groups:
                epoch, epoch_row, group = epoch + 1, 0, 0
        self.at = EpochPosition(epoch, epoch_row, group=group, row=row)
        return plan.joined(parts)[own]

    def position(self) -> dict[str, Any]:
        """See `Cursor.position`."""
        return self.at._asdict()

    def locate(
        self, state: Mapping[str, Any] | None, deal: Deal, other_data: bool = False
    ) -> EpochPosition:
        """See `Cursor.locate`.

        Other data goes on at the same row of the same group, or with the next group or epoch where
        there are fewer.

        Raises:
            SetpointError: there is no such position.
        """
        if state is None:
            return EpochPosition()
        plan, numbers = self.plan, [state[name] for name in EpochPosition._fields]
        epoch, epoch_row, group, row = numbers
        valid = all(type(number) is int and number >= 0 for number in numbers)
        if valid and other_data and group >= plan.groups:
            epoch, epoch_row, group, row = epoch + 1, 0, 0, 0
        valid = valid and group < plan.groups
        rows = len(plan.group(epoch, group)) if valid else 0
        if valid and other_data and row >= rows:
            epoch, group = divmod(epoch * plan.groups + group + 1, plan.groups)
            epoch_row, row = epoch_row if group else 0, 0
        elif not valid or row >= rows:
            raise SetpointError(
                f"data loader state: epoch {epoch!r}, group {group!r}, row {row!r} is not a "
                f"position.\nValid: epoch 0 or more, group 0 to {plan.groups - 1}, and a row of it."
            )
        return EpochPosition(epoch, epoch_row, group, row)

    def move(self, position: EpochPosition) -> None:
        """See `Cursor.move`."""
        self.at = position

    def close(self) -> None:
        """See `Cursor.close`."""
        self.plan.close()


class Shares(NamedTuple):
    """Shares of the sources from a row of the sequence on.

    Arguments:
        shares: one per source; they add up to 1.
    """

    first: int
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Shares of the sources of a mixture, and how often each may be read.

    Arguments:
        phases: by their first rows, which rise; the first is 0.
        limits: rows that may be taken of each source; None: any number.
        epoch_rows: rows of an epoch over all sources; None: not known.
        row_tokens: tokens that a row holds at most, where shares are of tokens; None: of rows.
    """

    names: tuple[str, ...]
    phases: Sequence[Shares]
    limits: Sequence[int | None]
    epoch_rows: int | None = None
    row_tokens: int | None = None

    def shares_at(self, row: int) -> tuple[float, ...]:
        """The shares of the phase of a row."""
        return next(phase for phase in reversed(self.phases) if phase.first <= row).shares

    def is_used_up(self, number: int, taken: int) -> bool:
        """True if a source was read as often as it may be; a limit may have been lowered since."""
        limit = self.limits[number]
        return limit is not None and taken >= limit


ONE_SOURCE = Schedule(("",), (Shares(0, (1.0,)),), (None,))


class Sampler:
    """The endless sequence of the rows of all ranks, by what `Sequences.rows` makes them of.

    It depends on the data, the seed and how many rows were taken, and on nothing else: not on how
    many ranks, workers or rows of a micro-batch there are.

    Each row of a mixture is taken from the source that is furthest behind its share. Within a phase
    the count of each of K sources differs from its share of all rows by less than K at every
    moment, so shares are exact in the long run; those of tokens differ by less than K rows' tokens.

    Arguments:
        cursors: of each source.
        schedule: of a mixture; without one there is one source.
        step_rows: rows of a step, all of which this rank may read; see `deal`.
    """

    def __init__(
        self, cursors: Sequence[Cursor], schedule: Schedule = ONE_SOURCE, step_rows: int = 1
    ) -> None:
        self.cursors, self.schedule = tuple(cursors), schedule
        self.taken = [0] * len(self.cursors)
        # Rows, or tokens, of each source since the shares were last others.
        self.since = [0] * len(self.cursors)
        self.deal(step_rows, range(step_rows))

    def deal(self, step_rows: int, own: Sequence[int]) -> None:
        """Assign rows of each step to this rank; called before any is taken.

        Arguments:
            own: their numbers within the step.
        """
        self._deal = Deal(step_rows, own)
        for cursor in self.cursors:
            cursor.move(cursor.locate(None, self._deal))

    @property
    def is_dealt(self) -> bool:
        """True if a rank knows the positions of its own rows alone; see `merged_state`."""
        return any(cursor.is_dealt for cursor in self.cursors)

    @property
    def position(self) -> int:
        """Rows that were taken, of all sources."""
        return sum(self.taken)

    @property
    def epoch(self) -> float:
        """Passes over the data that were taken, with the fraction of the current one.

        Of a mixture: rows taken as a multiple of all there are; with a stream, passes of the least
        read source.
        """
        if self.schedule.epoch_rows is None:
            return min(cursor.epoch for cursor in self.cursors)
        return self.position / self.schedule.epoch_rows

    def take(self, count: int, own: slice = ALL) -> Rows:
        """Move past the next rows of all ranks, and return those of this one.

        Arguments:
            own: which of them this rank reads.

        Raises:
            SetpointError: all sources that have a share were read as often as they may be, or a
                stream cannot be read; rows before that were given.
        """
        first, cursors = self.position, self.cursors
        if self.schedule is ONE_SOURCE:
            rows = cursors[0].take(np.arange(first, first + count), own)
            self.taken[0] += count
            return rows
        drawn, found = list[int](), list[list[Parts]]([] for _ in cursors)
        while len(drawn) < count:
            drawn += self._draw(count - len(drawn), found)
        source = np.array(drawn, np.int64)
        spans = MixedRows.spans(source, own, len(cursors))
        if self.schedule.row_tokens is not None:
            parts = (Parts.joined(rows)[span] for rows, span in zip(found, spans, strict=True))
        else:
            slots = (first + np.flatnonzero(source == number) for number in range(len(cursors)))
            triples = zip(cursors, slots, spans, strict=True)
            parts = (cursor.take(places, span) for cursor, places, span in triples)
        return MixedRows(source[own], tuple(parts))

    def _draw(self, count: int, found: list[list[Parts]]) -> list[int]:
        """Sources of up to `count` rows, over which the shares stay the same.

        Arguments:
            found: where shares are of tokens, gets the rows of each source.
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
                "source, which is then read as often as is needed."
            )
        whole = sum(share for _, share in shares)
        shares = [(number, share / whole) for number, share in shares]
        ahead = (phase.first - first for phase in schedule.phases if phase.first > first)
        since, total = self.since, sum(self.since)
        sources: list[int] = []
        for _ in range(min([count, *ahead])):
            wanted = total + (schedule.row_tokens or 1)
            _, number = max((share * wanted - since[k], -k) for k, share in shares)
            number, size = -number, 1
            if schedule.row_tokens is not None:
                found[number].append(self.cursors[number].take(np.zeros(1, np.int64), ALL))
                size = found[number][-1].token_count
            sources.append(number)
            taken[number] += 1
            since[number] += size
            total += size
            if schedule.is_used_up(number, taken[number]):
                self.since = [0] * len(taken)
                break
        return sources

    def close(self) -> None:
        """Drop caches, and close files; taking more opens them again."""
        for cursor in self.cursors:
            cursor.close()

    def state_dict(self) -> dict[str, Any]:
        """Of each source what was taken, its share and the position in it; JSON-able, small.

        Of a stream it has what this rank knows: `merged_state` puts together those of all.
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
        """Go on where `state` was taken, with any number of ranks and rows of a step.

        A source that is new in `other_data` starts at its beginning. Shares count anew where there
        are other sources, or others than when the state was taken.

        Arguments:
            state: from `state_dict` or `merged_state`, perhaps through JSON.
            other_data: whether the data may be another; the position is then the nearest there is.

        Raises:
            SetpointError: the state is one of other data, or of none. Nothing is changed then.
        """
        names, found = self.schedule.names, self._sources_of(state, other_data)
        for name, cursor in zip(names, self.cursors, strict=True):
            if name in found:
                _require_same_rows(found[name], cursor, other_data)
        new = {"taken": 0, "since": 0}
        given = [found.get(name, new) for name in names]
        taken = [each["taken"] for each in given]
        deal = self._deal._replace(first=sum(taken))
        positions = [
            cursor.locate(found.get(name), deal, other_data)
            for name, cursor in zip(names, self.cursors, strict=True)
        ]
        # Nothing is refused from here on.
        for cursor, position in zip(self.cursors, positions, strict=True):
            cursor.move(position)
        shares = self.schedule.shares_at(sum(taken))
        same = set(found) == set(names) and all(
            each["share"] == share for each, share in zip(given, shares, strict=True)
        )
        self.taken, self.since = taken, [each["since"] if same else 0 for each in given]

    def _sources_of(self, state: Mapping[str, Any], other_data: bool) -> dict[str, dict[str, Any]]:
        """The state of each source."""
        found: dict[str, Any] = state.get("sources", {})
        wrong = isinstance(found, dict) and [
            name for name, each in found.items() if not isinstance(each, dict)
        ]
        if set(state) != {"sources"} or not isinstance(found, dict) or not found or wrong:
            raise SetpointError(
                f"data loader state: has the keys {sorted(state)}.\n"
                "Valid: sources, as written into checkpoints."
            )
        names = set(self.schedule.names)
        was_mixture, is_mixture = "" not in found, self.schedule is not ONE_SOURCE
        if was_mixture == is_mixture and (other_data or set(found) == names):
            return found
        recorded = f"a mixture of {sorted(found)}" if was_mixture else "no mixture"
        now = f"a mixture of {sorted(names)}" if is_mixture else "no mixture"
        raise SetpointError(
            f"data.sources: the data position was recorded with {recorded}, and now there is "
            f"{now}, so it does not point at the same rows.\n"
            f"Valid: the sources of the record, or a new run."
        )


def merged_state(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The state of a `Sampler` from those of all ranks, each with its own lanes of streams."""
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
    """Refuse the state of a source with other rows.

    Raises:
        SetpointError: it has other keys or counts, or is of other data unless that is wanted.
    """
    facts, position = cursor.facts, cursor.position()
    streamed, was = "lanes" in position, "lanes" in state
    if streamed != was:
        raise SetpointError(
            f"data.sources: streaming was {str(was).lower()} where the data position was recorded, "
            f"and is {str(streamed).lower()} now, so it does not point at the same rows.\n"
            f"Valid: streaming = {str(was).lower()}, or a new run."
        )
    method = state.get("method", facts["method"])
    if method != facts["method"]:
        raise SetpointError(
            f"data.packing.method: the data position was recorded with {method}, and now it is "
            f"{facts['method']}, so it does not point at the same rows.\n"
            f"Valid: {method}, or a new run."
        )
    expected = {"taken", "since", "share", *position, *facts}
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
    for key, mine in facts.items():
        field, what = _FIELDS[key]
        if key == "order" and {mine, str(state[key])} - {"shuffled", "sources"}:
            field = "data.curriculum"
        recorded = state[key]
        if mine != recorded and not (other_data and key in ("tokens", "digest")):
            raise SetpointError(
                f"{field}: the data position was recorded with {what} {recorded}, and now it is "
                f"{mine}, so it does not point at the same rows.\n"
                f"Valid: {what} {recorded}, or a new run."
            )


# What a state is recognised by -> (the field to blame, how to call it)
_FIELDS = {
    "sequence_length": ("batch.sequence_length", "sequence length"),
    "seed": ("seed", "seed"),
    "tokens": ("data.sources", "a corpus of tokens"),
    "digest": ("data.sources", "corpus digest"),
    "method": ("data.packing.method", "packing"),
    "group_size": ("data.packing.group_size", "groups of"),
    "bucket": ("data.packing.length_buckets", "buckets of batch.global_size ="),
    "too_long": ("data.packing.too_long", "too_long"),
    "order": ("data.shuffle", "the order"),
    "shuffle_buffer": ("data.shuffle_buffer", "a shuffle buffer of"),
}


def describe_position(state: Mapping[str, Any]) -> str:
    """The state of a `Sampler` in words; empty if it is none.

    Returns:
        for instance `epoch 2, after 38 sequences`, or for a mixture that of each source with its
        share of all sequences that were taken.
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
    """Rows that a mixture takes, which are exact with one phase and else a few rows off.

    Arguments:
        total: as many as were asked for, or fewer where all sources are spent before.
        sources: of each.
    """

    total: float
    sources: tuple[float, ...]


def planned_rows(
    phases: Sequence[Shares], limits: Sequence[int | None], rows: float = inf
) -> PlannedRows:
    """Number of the first rows that are from each source.

    Arguments:
        limits: as of `Schedule`.
        rows: infinity: until all sources that have a share were read as often as they may be.
    """
    left = [inf if limit is None else float(limit) for limit in limits]
    taken, at = [0.0] * len(limits), 0.0
    for number, phase in enumerate(phases):
        end = min(rows, phases[number + 1].first if number + 1 < len(phases) else inf)
        while at < end:
            shares = {k: share for k, share in enumerate(phase.shares) if share and left[k] > 0}
            if not shares:
                return PlannedRows(at, tuple(taken))
            total = sum(shares.values())
            # Until the first of them is spent, or the phase ends.
            span = min(end - at, *(left[k] * total / share for k, share in shares.items()))
            for k, share in shares.items():
                spent = span * share / total
                taken[k] += spent
                left[k] = left[k] - spent if left[k] > spent * (1 + 1e-9) else 0.0
            at += span
    return PlannedRows(at, tuple(taken))


def shares_of(weights: Sequence[float], temperature: float = 1.0) -> tuple[float, ...]:
    """Shares in proportion to w^(1/temperature); a weight of 0 stays 0.

    Source: Conneau et al., "Unsupervised cross-lingual representation learning at scale" (2020),
    section 3.1, with alpha = 1 / temperature.
    """
    top = max(weights)
    powers = [(weight / top) ** (1 / temperature) if weight else 0.0 for weight in weights]
    return tuple(power / sum(powers) for power in powers)
