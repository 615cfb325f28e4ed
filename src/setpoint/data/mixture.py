"""Several sources as one stream, whose shares are those of their weights after every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from setpoint.config import SetpointError
from setpoint.data.document import DataIdentity
from setpoint.data.packing import Packer
from setpoint.data.rows import Parts, Rows, Sequences
from setpoint.data.sampler import ALL, EpochSampler, Sampler
from setpoint.shapes.batch import PADDING, TENSORS, Batch, Lengths


class Phase(NamedTuple):
    """Shares of the sources from a row of the stream on.

    Arguments:
        shares: one per source; they add up to 1.
    """

    first: int
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MixedRows:
    """Rows of several sources in the order of the stream.

    Arguments:
        source: (B,) which of the sources each is from.
        parts: of each source its rows, in the order in which they come.
    """

    source: npt.NDArray[np.int64]
    parts: tuple[Rows, ...]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: slice) -> MixedRows:
        parts = zip(self.parts, spans_of(self.source, key, len(self.parts)), strict=True)
        return MixedRows(self.source[key], tuple(rows[span] for rows, span in parts))


def spans_of(source: npt.NDArray[np.int64], key: slice, sources: int) -> list[slice]:
    """Of the rows of each source those within a slice of all rows."""
    start, stop, _ = key.indices(len(source))
    before = np.bincount(source[:start], minlength=sources)
    until = np.bincount(source[:stop], minlength=sources)
    return [slice(a, b) for a, b in zip(before.tolist(), until.tolist(), strict=True)]


class Mixture:
    """The rows of several sources: `setpoint.data.rows.Sequences`."""

    def __init__(self, names: Sequence[str], members: Sequence[Sequences]) -> None:
        self.sources = tuple(names)
        self.members = tuple(members)

    @property
    def sequence_length(self) -> int:
        """Tokens that the model reads of each row, S."""
        return self.members[0].sequence_length

    @property
    def identity(self) -> DataIdentity:
        """What its sources are, one after the other."""
        return DataIdentity.joined([each.identity for each in self.members])

    @property
    def epoch_rows(self) -> int | None:
        """Rows of an epoch of each source; None where one is a stream."""
        counts = [each.epoch_rows for each in self.members]
        return None if None in counts else sum(count or 0 for count in counts)

    def rows(self, rows: MixedRows) -> Batch:
        """Some of them as a batch, in the order of the stream."""
        made = [
            (number, member.rows(part))
            for number, (member, part) in enumerate(zip(self.members, rows.parts, strict=True))
            if len(part)
        ]
        # Where each row of the batch lies when those of one source stand together.
        places = torch.from_numpy(np.argsort(np.argsort(rows.source, kind="stable")))
        batches = [batch for _, batch in made]
        tensors: dict[str, Any] = {name: _joined(batches, name, places) for name in TENSORS}
        return Batch(
            **tensors,
            lengths=Lengths.of_places(tensors["positions"], tensors["documents"]),
            tokens=sum(batch.tokens for batch in batches),
            target_tokens=sum(batch.target_tokens for batch in batches),
            target_bytes=sum(batch.target_bytes for batch in batches),
            source=torch.from_numpy(rows.source),
        )

    def describe(self, rows: MixedRows) -> str:
        """Which documents they begin in, by source."""
        pairs = zip(self.members, rows.parts, strict=True)
        return "; ".join(member.describe(part) for member, part in pairs if len(part))

    def names_in(self, rows: MixedRows) -> list[list[str | None]]:
        """See `Sequences`."""
        pairs = zip(self.members, rows.parts, strict=True)
        names = [iter(member.names_in(part) if len(part) else []) for member, part in pairs]
        return [next(names[source]) for source in rows.source.tolist()]


def _joined(batches: Sequence[Batch], name: str, places: torch.Tensor) -> torch.Tensor | None:
    tensors = [getattr(batch, name) for batch in batches]
    if all(each is None for each in tensors):
        return None
    width = max(each.shape[1] for each in tensors)
    padded = [_widened(each, width, PADDING[name]) for each in tensors]
    return torch.cat(padded)[places]


def _widened(rows: torch.Tensor, width: int, value: int) -> torch.Tensor:
    missing = width - rows.shape[1]
    return torch.nn.functional.pad(rows, (0, missing), value=value) if missing else rows


class MixtureSampler:
    """Takes each row from the source that is furthest behind its share.

    Within a phase the count of each of K sources differs from its share of all rows by less than K
    at every moment, on all machines and for any number of ranks, so shares are exact in the long
    run; those of tokens differ by less than K rows' tokens. Nothing is drawn.

    Arguments:
        members: the samplers of the sources.
        phases: by their first rows, which rise; the first is 0.
        limits: rows that may be taken of each source; None: as many as are wanted.
        size: rows of an epoch over all sources; None: not known.
        row_tokens: tokens that a row holds at most, where shares are of tokens; None: of rows.

    Raises:
        SetpointError: shares are of tokens, and a source is not packed.
    """

    def __init__(
        self,
        names: Sequence[str],
        members: Sequence[Sampler],
        phases: Sequence[Phase],
        limits: Sequence[int | None],
        size: int | None,
        row_tokens: int | None = None,
    ) -> None:
        self.names = tuple(names)
        self.members = tuple(members)
        self.phases = tuple(phases)
        self.limits = tuple(limits)
        self.size = size
        self.taken = [0] * len(self.names)
        self.row_tokens = row_tokens
        for name, member in zip(names, members, strict=True):
            packed = isinstance(member, EpochSampler) and isinstance(member.plan, Packer)
            if row_tokens is not None and not packed:
                raise SetpointError(
                    f"data.mixture.by: tokens needs to know how many the next row of '{name}' "
                    "holds, which is known of packed sources that are not streamed.\n"
                    "Valid: sequences."
                )
        # Rows, or tokens, of each source since the shares were last others.
        self.since = [0] * len(self.names)

    @property
    def deals(self) -> bool:
        """See `Sampler.deals`."""
        return any(member.deals for member in self.members)

    def deal(self, rows_of_step: int, own: Sequence[int]) -> None:
        """See `Sampler.deal`."""
        for member in self.members:
            member.deal(rows_of_step, own)

    @property
    def position(self) -> int:
        """Rows that were taken, of all sources."""
        return sum(self.taken)

    @property
    def epoch(self) -> float:
        """Rows taken as a multiple of all there are; with a stream, passes of the least read."""
        if self.size is None:
            return min(member.epoch for member in self.members)
        return self.position / self.size

    def take(
        self, count: int, own: slice = ALL, slots: npt.NDArray[np.int64] | None = None
    ) -> MixedRows:
        """See `Sampler.take`.

        Raises:
            SetpointError: all sources that have a share were read as often as they may be.
        """
        first, drawn = self.position, list[int]()
        found: list[list[Parts]] = [[] for _ in self.names]
        while len(drawn) < count:
            drawn += self._stretch(count - len(drawn), found)
        source = np.array(drawn, np.int64)
        spans = spans_of(source, own, len(self.names))
        if self.row_tokens is not None:
            parts = tuple(Parts.joined(rows)[span] for rows, span in zip(found, spans, strict=True))
        else:
            places = [first + np.flatnonzero(source == k) for k in range(len(self.names))]
            parts = tuple(
                member.take(len(places[k]), spans[k], places[k])
                for k, member in enumerate(self.members)
            )
        return MixedRows(source[own], parts)

    def _stretch(self, count: int, found: list[list[Parts]]) -> list[int]:
        """Sources of up to `count` rows, over which the shares stay the same.

        Arguments:
            found: where shares are of tokens, gets the rows of each source.
        """
        at = self.position
        if any(phase.first == at for phase in self.phases):
            self.since = [0] * len(self.names)
        shares, taken, since = self._shares(at), self.taken, self.since
        ahead = (phase.first - at for phase in self.phases if phase.first > at)
        count, total = min([count, *ahead]), sum(since)
        places: list[int] = []
        for _ in range(count):
            wanted = total + (self.row_tokens or 1)
            _, number = max((share * wanted - since[k], -k) for k, share in shares)
            number = -number
            size = 1
            if self.row_tokens is not None:
                found[number].append(self.members[number].take(1))
                size = found[number][-1].token_count
            places.append(number)
            taken[number] += 1
            since[number] += size
            total += size
            if self._is_used_up(number):
                self.since = [0] * len(self.names)
                break
        return places

    def _shares(self, at: int) -> list[tuple[int, float]]:
        """The sources that rows may come from, with their shares."""
        shares = [
            (number, share)
            for number, share in enumerate(self._given(at))
            if share > 0 and not self._is_used_up(number)
        ]
        if not shares:
            raise SetpointError(
                f"data.sources: every source was read as often as its epochs allow, after {at} "
                f"sequences.\nValid: a shorter duration, more epochs, or epochs = null for a "
                "source, which is then read as often as is needed."
            )
        total = sum(share for _, share in shares)
        return [(number, share / total) for number, share in shares]

    def _is_used_up(self, number: int) -> bool:
        """Whether a source was read as often as it may be; a limit may have been lowered since."""
        limit = self.limits[number]
        return limit is not None and self.taken[number] >= limit

    def _given(self, at: int) -> Sequence[float]:
        """The shares of the phase of a row."""
        return next(phase for phase in reversed(self.phases) if phase.first <= at).shares

    def forget(self) -> None:
        """Drop what the sources keep."""
        for member in self.members:
            member.forget()

    def state_dict(self) -> dict[str, Any]:
        """What was taken of each source, over all and since shares changed; its share and state."""
        shares = self._given(self.position)
        counts = zip(self.names, self.members, self.taken, self.since, shares, strict=True)
        return {
            "mixture": {
                name: {"taken": taken, "since": since, "share": share, "state": member.state_dict()}
                for name, member, taken, since, share in counts
            }
        }

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Go on where `state` was taken; see `setpoint.data.sampler.Sampler`.

        A source that is new in `other_data` starts at its beginning. Shares count anew where there
        are other sources, or others than when the state was taken.

        Raises:
            SetpointError: the state is one of other sources or other data.
        """
        found = state.get("mixture")
        if not isinstance(found, dict) or not (other_data or set(found) == set(self.names)):
            known = sorted(found) if isinstance(found, dict) else "no mixture"
            raise SetpointError(
                f"data.sources: the data position was recorded with {known}, and now the mixture "
                f"is of {sorted(self.names)}, so it does not point at the same rows.\n"
                f"Valid: the sources of the record, or a new run."
            )
        kept = [member.state_dict() for member in self.members]
        try:
            for name, member in zip(self.names, self.members, strict=True):
                if name in found:
                    member.load_state_dict(found[name]["state"], other_data)
        except SetpointError:
            for member, before in zip(self.members, kept, strict=True):
                member.load_state_dict(before)
            raise
        given = [found.get(name, {"taken": 0, "since": 0}) for name in self.names]
        self.taken = [int(each["taken"]) for each in given]
        shares = self._given(sum(self.taken))
        same = set(found) == set(self.names) and all(
            each["share"] == share for each, share in zip(given, shares, strict=True)
        )
        self.since = [int(each["since"]) if same else 0 for each in given]


class Planned(NamedTuple):
    """Rows that a mixture takes, which are exact with one phase and else a few rows off.

    Arguments:
        total: as many as were asked for, or fewer where all sources are spent before.
        sources: of each.
    """

    total: float
    sources: tuple[float, ...]


def planned_rows(
    phases: Sequence[Phase], limits: Sequence[int | None], rows: float = inf
) -> Planned:
    """How many of the first rows are from each source.

    Arguments:
        limits: as of `MixtureSampler`.
        rows: infinity: until all sources that have a share were read as often as they may be.
    """
    left = [inf if limit is None else float(limit) for limit in limits]
    taken, at = [0.0] * len(limits), 0.0
    for number, phase in enumerate(phases):
        end = min(rows, phases[number + 1].first if number + 1 < len(phases) else inf)
        while at < end:
            shares = {k: share for k, share in enumerate(phase.shares) if share and left[k] > 0}
            if not shares:
                return Planned(at, tuple(taken))
            total = sum(shares.values())
            # Until the first of them is spent, or the phase ends.
            span = min(end - at, *(left[k] * total / share for k, share in shares.items()))
            for k, share in shares.items():
                spent = span * share / total
                taken[k] += spent
                left[k] = left[k] - spent if left[k] > spent * (1 + 1e-9) else 0.0
            at += span
    return Planned(at, tuple(taken))


def shares_of(weights: Sequence[float], temperature: float = 1.0) -> tuple[float, ...]:
    """Shares in proportion to w^(1/temperature); a weight of 0 stays 0.

    Source: Conneau et al., "Unsupervised cross-lingual representation learning at scale" (2020),
    section 3.1, with alpha = 1 / temperature.
    """
    top = max(weights)
    powers = [(weight / top) ** (1 / temperature) if weight else 0.0 for weight in weights]
    return tuple(power / sum(powers) for power in powers)
