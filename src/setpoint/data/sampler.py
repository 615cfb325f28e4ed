"""Which rows come next: planned in one place, the same on all ranks, before any of them is made.

Orders are keyed: numpy promises its bit generators' streams but not what `Generator.permutation`
and its like make of them, and a resumed run must see the same rows under a newer numpy. So the
little that the data needs is computed here, as a pure function of a key and a counter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError

if TYPE_CHECKING:
    from setpoint.data.rows import Rows, Sequences

ALL = slice(None)
PART = 4096
"""Places whose order is computed at once; how many an epoch has makes no difference."""
ROUNDS = 6
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def random_bits(key: str, count: int) -> npt.NDArray[np.uint64]:
    """`count` random words; word i depends on nothing but the key and i, and all differ.

    Arguments:
        key: any text; other keys give unrelated words.

    Source: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",

    2014), started at the first 8 bytes of the key's SHA-256.
    """
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    words = np.arange(1, count + 1, dtype=np.uint64)
    words *= _STEP
    words += np.uint64(start)
    return _mixed(words)


def shuffled(key: str, size: int, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """What stands at some places of a random order of 0..size-1, of which no more is computed.

    A Feistel network over the bits of a place, whose rounds are SplitMix64's finalizer, is a
    bijection of 0 .. 4^h - 1 (Luby and Rackoff, 1988). What falls beyond the size goes through
    again until it does not: a walk along a cycle, so that the rest is a bijection, too.

    Arguments:
        key: any text; other keys give unrelated orders.
        size: below 2^62.
        places: each in 0..size-1.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    bits, mask = np.uint64(half), np.uint64(2**half - 1)
    keys = random_bits(key, ROUNDS)
    found = places.astype(np.uint64)
    beyond = np.arange(len(found))
    while len(beyond):
        left, right = found[beyond] >> bits, found[beyond] & mask
        for each in keys:
            left, right = right, left ^ (_mixed(right + each) & mask)
        found[beyond] = left << bits | right
        beyond = beyond[found[beyond] >= size]
    return found.astype(np.int64)


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer, in place: a bijection whose bits depend on all bits."""
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


class Sampler(Protocol):
    """The endless stream of the rows of all ranks, by what `Sequences.rows` makes them of.

    It depends on the data, the seed and how many rows were taken, and on nothing else: not on how
    many ranks, workers or rows of a micro-batch there are.
    """

    @property
    def deals(self) -> bool:
        """True if a rank knows the places of its own rows alone, so that states are merged."""
        ...

    def deal(self, rows_of_step: int, own: Sequence[int]) -> None:
        """Tell which rows of each step this rank may ask for; called before any is taken.

        Arguments:
            own: their numbers within the step.
        """
        ...

    @property
    def epoch(self) -> float:
        """Passes over the data that were taken, with the fraction of the current one."""
        ...

    def take(
        self, count: int, own: slice = ALL, slots: npt.NDArray[np.int64] | None = None
    ) -> Rows:
        """Move past the next rows of all ranks, and return those of this one.

        Arguments:
            own: which of them this rank reads.
            slots: (count,) their places among the rows of all sources, where there are several.
        """
        ...

    def forget(self) -> None:
        """Drop what was kept to be faster."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where in the stream it is; JSON-able, small."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """Go on where `state` was taken.

        Arguments:
            state: from `state_dict`, perhaps through JSON.
            other_data: whether the data may be another; the place is then the nearest there is.

        Raises:
            SetpointError: the state is one of other data, or of none. Nothing is changed then.
        """
        ...


class Plan(Protocol):
    """The rows of an epoch in groups, each a function of the epoch and its number."""

    @property
    def size(self) -> int:
        """Rows, or documents that are packed, of an epoch."""
        ...

    @property
    def groups(self) -> int:
        """Groups of an epoch."""
        ...

    @property
    def facts(self) -> dict[str, Any]:
        """What its states are recognised by, beside the data."""
        ...

    def group(self, epoch: int, number: int) -> Rows:
        """The rows of a group."""
        ...

    def passed(self, epoch: int, group: int, row: int) -> int:
        """How many of `size` come before a row of a group."""
        ...

    def joined(self, rows: Sequence[Rows]) -> Rows:
        """Rows after rows."""
        ...

    def forget(self) -> None:
        """Drop the groups that are kept."""
        ...


class Order:
    """Every row by its number once per epoch, in a new order each epoch or in that of the numbers.

    Arguments:
        size: rows in an epoch.
        name: of the source, where there are several streams with one seed.
        kind: `shuffled`, or how the documents are ordered whose rows have the numbers.
    """

    def __init__(self, seed: int, size: int, name: str = "", kind: str = "shuffled") -> None:
        self.seed, self.size, self.kind = seed, size, kind
        self.groups = -(-size // PART)
        self.stream = f"windows/{seed}/{name}/" if name else f"windows/{seed}/"
        # Two: a batch which crosses into the next part needs both.
        self.group = lru_cache(maxsize=2)(self._draw)

    @property
    def facts(self) -> dict[str, Any]:
        """See `Plan.facts`."""
        return {"seed": self.seed, "method": "concatenate", "order": self.kind}

    def passed(self, epoch: int, group: int, row: int) -> int:
        """See `Plan.passed`."""
        return group * PART + row

    def joined(self, rows: Sequence[Rows]) -> Rows:
        """See `Plan.joined`."""
        return rows[0].copy() if len(rows) == 1 else np.concatenate([np.empty(0, np.int64), *rows])

    def forget(self) -> None:
        """See `Plan.forget`."""
        self.group.cache_clear()

    def _draw(self, epoch: int, part: int) -> npt.NDArray[np.int64]:
        places = np.arange(part * PART, min(self.size, (part + 1) * PART))
        shuffle = self.kind == "shuffled"
        return shuffled(f"{self.stream}{epoch}", self.size, places) if shuffle else places


class EpochSampler:
    """The rows of a plan, epoch after epoch, as one stream: `Sampler`.

    A batch may cross from one epoch into the next, so nothing is dropped. The state is which row of
    which group comes next.
    """

    deals = False

    def __init__(self, sequences: Sequences, plan: Plan) -> None:
        self.sequences, self.plan = sequences, plan
        self._epoch, self._index, self._group, self._row = 0, 0, 0, 0

    def deal(self, rows_of_step: int, own: Sequence[int]) -> None:
        """See `Sampler.deal`; rows are planned for all ranks at no cost."""

    @property
    def epoch(self) -> float:
        """See `Sampler.epoch`."""
        passed = self.plan.passed(self._epoch, self._group, self._row)
        return (self._epoch * self.plan.size + passed) / self.plan.size

    def take(
        self, count: int, own: slice = ALL, slots: npt.NDArray[np.int64] | None = None
    ) -> Rows:
        """See `Sampler.take`."""
        plan, parts = self.plan, list[Any]()
        while count:
            group = plan.group(self._epoch, self._group)
            parts.append(group[self._row : self._row + count])
            taken = len(parts[-1])
            count, self._row, self._index = count - taken, self._row + taken, self._index + taken
            if self._row == len(group):
                self._group, self._row = self._group + 1, 0
            if self._group == plan.groups:
                self._epoch, self._index, self._group = self._epoch + 1, 0, 0
        return plan.joined(parts)[own]

    def forget(self) -> None:
        """See `Sampler.forget`."""
        self.plan.forget()

    def state_dict(self) -> dict[str, Any]:
        """Which row of which group of which epoch comes next, and what it is a place in.

        Returns:
            also `index`, the rows of the epoch before it, for people.
        """
        place = {"epoch": self._epoch, "index": self._index, "group": self._group, "row": self._row}
        return {**place, **self._stream()}

    def load_state_dict(self, state: Mapping[str, Any], other_data: bool = False) -> None:
        """See `Sampler.load_state_dict`.

        Other data goes on at the same row of the same group, or with the next group or epoch where
        there are fewer.

        Raises:
            SetpointError: the state is one of other data or of another packing, or of none.
        """
        names, plan = ("epoch", "index", "group", "row"), self.plan
        refuse_other_stream(state, self._stream(), names, other_data)
        epoch, index, group, row = (state[name] for name in names)
        valid = all(type(number) is int and number >= 0 for number in (epoch, index, group, row))
        if valid and other_data and group >= plan.groups:
            epoch, index, group, row = epoch + 1, 0, 0, 0
        valid = valid and group < plan.groups
        rows = len(plan.group(epoch, group)) if valid else 0
        if valid and other_data and row >= rows:
            epoch, group = divmod(epoch * plan.groups + group + 1, plan.groups)
            index, row = index if group else 0, 0
        elif not valid or row >= rows:
            raise SetpointError(
                f"data loader state: epoch {epoch!r}, group {group!r}, row {row!r} is not a "
                f"position.\nValid: epoch 0 or more, group 0 to {plan.groups - 1}, and a row of it."
            )
        self._epoch, self._index, self._group, self._row = epoch, index, group, row

    def _stream(self) -> dict[str, Any]:
        identity = self.sequences.identity
        return {
            "sequence_length": self.sequences.sequence_length,
            "tokens": identity.tokens,
            "digest": identity.digest,
            **self.plan.facts,
        }


def refuse_other_stream(
    state: Mapping[str, Any],
    stream: Mapping[str, Any],
    place: Sequence[str],
    other_data: bool,
) -> None:
    """Refuse a state of another stream.

    Arguments:
        stream: what the states of this one are recognised by.
        place: the keys of a state that say where in the stream it is.

    Raises:
        SetpointError: it has other keys, or is of other data unless that is wanted.
    """
    streamed, was = "lanes" in place, "lanes" in state
    if streamed != was:
        raise SetpointError(
            f"data.sources: streaming was {str(was).lower()} where the data position was recorded, "
            f"and is {str(streamed).lower()} now, so it does not point at the same rows.\n"
            f"Valid: streaming = {str(was).lower()}, or a new run."
        )
    method = state.get("method", stream["method"])
    if method != stream["method"]:
        raise SetpointError(
            f"data.packing.method: the data position was recorded with {method}, and now it is "
            f"{stream['method']}, so it does not point at the same rows.\n"
            f"Valid: {method}, or a new run."
        )
    expected = {*place, *stream}
    if set(state) != expected:
        raise SetpointError(
            f"data loader state: has the keys {sorted(state)}.\n"
            f"Valid: {sorted(expected)}, as written into checkpoints."
        )
    for key, mine in stream.items():
        field, what = _FIELDS[key]
        if key == "order" and {mine, state[key]} - {"shuffled", "sources"}:
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
    "bucket": ("data.packing.length_buckets", "length buckets of"),
    "too_long": ("data.packing.too_long", "too_long"),
    "order": ("data.shuffle", "the order"),
    "shuffle_buffer": ("data.shuffle_buffer", "a shuffle buffer of"),
}


def describe_position(state: Mapping[str, Any]) -> str:
    """The state of a `Sampler` in words; empty where it has neither epochs nor sources.

    Returns:
        for instance `epoch 2, after 38 sequences`, or for a mixture that of each source with its
        share of all sequences that were taken.
    """
    mixture = state.get("mixture")
    if isinstance(mixture, dict):
        sources: dict[str, Any] = mixture
        total = sum(source["taken"] for source in sources.values())
        said = [
            f"{name} {source['taken'] / max(total, 1):.1%} ({describe_position(source['state'])})"
            for name, source in sources.items()
        ]
        return f"after {total:,} sequences: {', '.join(said)}"
    if "epoch" not in state or "index" not in state:
        return ""
    text = f"epoch {state['epoch'] + 1}, after {state['index']:,} sequences"
    lanes: dict[str, Any] = state.get("lanes", {})
    for lane in list(lanes.values())[:1]:
        begin = lane["from"]
        if begin is not None:
            text += f", in the documents from {begin['file']}, row {begin.get('row', 0) + 1:,} on"
        if lane["document"]:
            text += f", {lane['document']} at token {lane['offset']:,}"
        if state["rows_of_step"] > 1:
            text += f" (row 1 of {state['rows_of_step']:,} of a step)"
    return text
