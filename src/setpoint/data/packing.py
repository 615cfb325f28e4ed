"""Packing of documents into rows, a function of document lengths, seed, epoch and group."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError, plural
from setpoint.data.config import Packing
from setpoint.data.corpus import LOOKED_AT, Corpus, Ints, Parts
from setpoint.data.order import EpochCursor, shuffled
from setpoint.data.rows import DocumentRows, cut_rows

COUNTED_GROUPS = 32
"""Groups whose rows are counted; with more groups the number of rows is extrapolated."""


class DocumentPieces(NamedTuple):
    """The pieces to pack: documents, or parts of documents longer than a row.

    Inputs and targets belong to the same document. A document of n tokens takes n + 1 positions,
    since its inputs begin with the preceding separator; a complete document takes n - 1. See
    `Corpus.reads`.

    Arguments:
        starts: (P,) offset of the first input token of each piece.
        lengths: (P,) number of input tokens.
        too_long: number of documents longer than a row.
        left_out: number of their tokens that are in no row.
        without_targets: number of pieces dropped because they contain no target.
        notes: messages about documents that are cut, split or dropped.
    """

    starts: Ints
    lengths: Ints
    too_long: int
    left_out: int
    without_targets: int
    notes: tuple[str, ...]


def pieces_of(corpus: Corpus, length: int, too_long: str) -> DocumentPieces:
    """Divide a corpus into pieces of at most `length` tokens, in order; there may be none.

    Complete documents are truncated, not split, because an answer would otherwise be trained
    without its question.

    Arguments:
        too_long: same as `data.packing.too_long`.

    Raises:
        SetpointError: a document is too long, which the section treats as an error.
    """
    starts, lengths = corpus.reads()
    longer = np.flatnonzero(lengths > length)
    count, total = len(longer), int(lengths.sum())
    all_complete = corpus.complete(np.arange(len(starts))).all()
    out_of = f"of {len(starts):,} {'conversations' if all_complete else 'documents'}"
    done: dict[str, int] = {}
    if count and too_long == "error":
        first = int(longer[0])
        name, size = corpus.files[first].name, int(lengths[first])
        raise SetpointError(
            f"data.packing.too_long: {count} of {len(starts)} documents are longer than a row of "
            f"{length} tokens, the first of them '{name}' with {size}.\n"
            f"Valid: batch.sequence_length >= {int(lengths.max())}, or too_long = split, "
            "truncate or drop."
        )
    if count and too_long == "drop":
        done = {"left out": count}
        kept = lengths <= length
        starts, lengths = starts[kept], lengths[kept]
    elif count:
        cut = longer if too_long == "truncate" else longer[corpus.complete(longer)]
        done = {"cut": len(cut), "split": count - len(cut)}
        lengths[cut] = length
        parts = np.maximum(-(-lengths // length), 1)
        number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        starts = np.repeat(starts, parts) + number * length
        lengths = np.minimum(np.repeat(lengths, parts) - number * length, length)
    left_out = total - int(lengths.sum())
    trained = _have_targets(corpus, starts, lengths)
    without = len(starts) - int(trained.sum())
    if without:
        starts, lengths = starts[trained], lengths[trained]
    notes: list[str] = []
    for action, number in done.items():
        lost = "" if action == "split" else f" ({left_out:,} tokens in no row)"
        if number:
            notes.append(f"{number:,} {out_of} are longer than {length:,} tokens: {action}{lost}")
    if without:
        notes.append(f"{without:,} {out_of} have no trained token within {length:,}: dropped")
    return DocumentPieces(starts, lengths, count, left_out, without, tuple(notes))


def require_pieces(pieces: DocumentPieces, corpus: Corpus, length: int) -> None:
    """Refuse a corpus without pieces.

    Raises:
        SetpointError: there are no pieces.
    """
    if not len(pieces.starts):
        use = "to train on" if corpus.side == "train" else f"in {corpus.side} to evaluate on"
        raise SetpointError(
            f"data.packing: of {plural(len(corpus.starts), 'document')}, none is left {use}: "
            f"{pieces.too_long} longer than a row of {length} tokens, and "
            f"{pieces.without_targets} without a target within that.\n"
            f"Valid: a larger batch.sequence_length (the longest document takes "
            f"{int(corpus.reads()[1].max(initial=0)):,}), too_long = split for text, or data with "
            "targets."
        )


def _have_targets(corpus: Corpus, starts: Ints, lengths: Ints) -> npt.NDArray[np.bool_]:
    mask = np.ones(len(starts), np.bool_)
    if corpus.trained is None:
        return mask
    i = 0
    while i < len(starts):
        begin = int(starts[i])
        until = max(int(np.searchsorted(starts, begin + LOOKED_AT)), i + 1)
        first, last = (starts[i:until] - begin, starts[i:until] - begin + lengths[i:until])
        trained = corpus.trained[begin + 1 : begin + int(last[-1]) + 1]
        before = np.append(0, np.cumsum(trained, dtype=np.int64))
        mask[i:until] = before[last] > before[first]
        i = until
    return mask


def next_fit(lengths: Ints, size: int) -> Ints:
    """Next-fit packing: put each item into the newest bin, or into a new one if it does not fit.

    Returns:
        (n,) the bin of each item, from 0.
    """
    ends = np.cumsum(lengths)
    # If a bin starts at each item: the first one that it does not hold.
    nexts = np.searchsorted(ends, ends - lengths + size, "right").tolist()
    opens = np.zeros(len(lengths), np.int64)
    index = 0
    while index < len(nexts):
        opens[index] = 1
        index = nexts[index]
    return np.cumsum(opens) - 1


def first_fit_decreasing(lengths: Ints, size: int) -> Ints:
    """First-fit-decreasing packing: longest items first, each into the first bin with room.

    Items of equal length are placed at once, so there are as many rounds as distinct lengths.

    Returns:
        (n,) the bin of each item, from 0.
    """
    order = np.argsort(-lengths, kind="stable")
    negative, firsts, counts = np.unique(-lengths[order], return_index=True, return_counts=True)
    bins = np.empty(len(lengths), np.int64)
    room = np.empty(len(lengths), np.int32)
    opened = 0
    for length, first, count in zip(
        (-negative).tolist(), firsts.tolist(), counts.tolist(), strict=True
    ):
        fitting = np.flatnonzero(room[:opened] >= length)[:count]
        given = np.repeat(fitting, room[fitting] // length)[:count]
        if len(given):
            room[: given[-1] + 1] -= np.bincount(given).astype(np.int32) * length
        remaining, per_bin = count - len(given), size // length
        if remaining:
            new = -(-remaining // per_bin)
            given = np.append(given, opened + np.arange(remaining) // per_bin)
            room[opened : opened + new] = size - per_bin * length
            room[opened + new - 1] = size - (remaining - (new - 1) * per_bin) * length
            opened += new
        bins[order[first : first + count]] = given
    return bins


class Packer(EpochCursor):
    """Packing of a corpus, redone in each epoch, group by group.

    An epoch takes the documents in a random or given order, `group_size` at a time, so that a
    resumed run has to repack only one group.

    Arguments:
        order: (P,) order of the pieces in every epoch; None: a random order for each epoch.
        kind: `shuffled`, or the name of the given order.
        bucket: rows per length bucket, with `section.length_buckets`.
        name: name of the source in a mixture.
    """

    def __init__(
        self,
        corpus: Corpus,
        pieces: DocumentPieces,
        section: Packing,
        *,
        length: int,
        seed: int,
        bucket: int = 1,
        name: str = "",
        order: Ints | None = None,
        kind: str = "shuffled",
    ) -> None:
        self.pieces, self.order = pieces, order
        self.method, self.length = section.method, length
        self.bucket = bucket if section.length_buckets else 1
        # Whole buckets, so that those of one group do not shift those of the next.
        group_size = max(section.group_size // self.bucket, 1) * self.bucket
        facts = {
            "seed": seed, "order": kind, "method": self.method, "bucket": self.bucket,
            "group_size": group_size, "too_long": section.too_long,
        }  # fmt: skip
        key = f"documents/{seed}/{name}/" if name else f"documents/{seed}/"
        super().__init__(
            corpus, length, size=len(pieces.starts), group_size=group_size, key=key, facts=facts
        )

    def passed(self, epoch: int, group: int, row: int) -> int:
        rows_before = int(self.group(epoch, group).ends[row - 1]) if row else 0
        return group * self.group_size + rows_before

    @property
    def is_estimated(self) -> bool:
        """True if the number of rows is extrapolated from `COUNTED_GROUPS` groups."""
        return self.method != "none" and self.groups > COUNTED_GROUPS

    def rows_of_epoch(self) -> int:
        """Number of rows in the first epoch; other epochs have about as many.

        Returns:
            the exact number, or an extrapolation if `is_estimated`.
        """
        if self.method == "none":
            return self.size
        if not self.is_estimated:
            return sum(int(self._bins(*self._drawn(0, n)).max()) + 1 for n in range(self.groups))
        # The last group, which may be smaller, is left out.
        looked_at = np.linspace(0, self.groups - 2, COUNTED_GROUPS).astype(int).tolist()
        rows = sum(int(self._bins(*self._drawn(0, n)).max()) + 1 for n in looked_at)
        return math.ceil(rows / (COUNTED_GROUPS * self.group_size) * self.size)

    def _drawn(self, epoch: int, group: int) -> tuple[str, Ints]:
        """Key of an epoch, and the pieces of a group in the epoch's order."""
        places, key = self.places(group), f"{self.key}{epoch}"
        return key, shuffled(key, self.size, places) if self.order is None else self.order[places]

    def _mixed(self, key: str, count: int) -> Ints:
        """A permutation of rows or buckets; the identity if the order is given."""
        places = np.arange(count)
        return shuffled(key, count, places) if self.order is None else places

    def _bins(self, key: str, drawn: Ints) -> Ints:
        """Row of each piece of a group."""
        lengths = self.pieces.lengths[drawn]
        if self.method == "next_fit":
            return next_fit(lengths, self.length)
        if self.method == "first_fit_decreasing":
            bins = first_fit_decreasing(lengths, self.length)
            count = int(bins.max()) + 1
            # The first bins have the longest documents; rows of all kinds are to alternate.
            return self._mixed(f"{key}/rows/{drawn[0]}", count)[bins]
        if self.bucket == 1:
            return np.arange(len(drawn))
        bins = np.empty_like(drawn)
        bins[np.argsort(lengths, kind="stable")] = np.arange(len(drawn))
        buckets = len(drawn) // self.bucket
        if buckets == 0:
            return bins
        targets = self._mixed(f"{key}/buckets/{drawn[0]}", buckets)
        number, place = np.divmod(bins, self.bucket)
        full = number < buckets
        bins[full] = targets[number[full]] * self.bucket + place[full]
        return bins

    def _rows(self, epoch: int, group: int) -> Parts:
        key, drawn = self._drawn(epoch, group)
        bins = self._bins(key, drawn)
        chosen = drawn[np.argsort(bins, kind="stable")]
        pieces = self.pieces
        return Parts(pieces.starts[chosen], pieces.lengths[chosen], np.cumsum(np.bincount(bins)))


def build_packed(
    corpus: Corpus,
    section: Packing,
    *,
    length: int,
    seed: int,
    bucket: int,
    marked: bool = False,
    name: str = "",
    order: Ints | None = None,
    kind: str = "shuffled",
) -> tuple[DocumentRows, Packer]:
    """Build the packed rows of a corpus.

    Arguments:
        order: (documents,) order of the documents in every epoch; None: random.
        kind, bucket, name: see `Packer`.
        length: tokens of a row.
        marked: see `DocumentRows`.

    Raises:
        SetpointError: a document is too long, which the section treats as an error, or none is
            left.
    """
    pieces = pieces_of(corpus, length, section.too_long)
    require_pieces(pieces, corpus, length)
    if order is not None:
        rank = np.argsort(order)
        documents = np.searchsorted(corpus.starts, pieces.starts + 1, "right") - 1
        order = np.argsort(rank[documents], kind="stable")
    packer = Packer(
        corpus, pieces, section,
        length=length, seed=seed, bucket=bucket, name=name, order=order, kind=kind,
    )  # fmt: skip
    count = packer.rows_of_epoch()
    tokens = int(pieces.lengths.sum())
    number = f"about {count:,}" if packer.is_estimated else f"{count:,}"
    padding = max(0.0, 1 - tokens / (count * length))  # an estimate may be too small
    notes = [f"{number} rows, {padding:.1%} padding"]
    if section.pad_to_multiple_of is not None:
        notes = [f"{number} rows of {tokens / count:.0f} tokens on average"]
    notes += pieces.notes
    rows = DocumentRows(
        corpus,
        length,
        count=count,
        # Without packing each row is one document.
        isolated=bool(section.isolate) and section.method != "none",
        marked=marked,
        multiple=section.pad_to_multiple_of,
        row_tokens=tokens / count,
        note=", ".join(notes),
    )
    return rows, packer


def evaluation_rows(
    corpus: Corpus,
    section: Packing,
    length: int,
    *,
    isolates: bool = True,
    marked: bool = False,
    multiple: int | None = None,
) -> DocumentRows:
    """Divide a corpus into rows as in training, in the order of the corpus.

    Concatenated text is cut into rows. Other packing methods predict each document separately, and
    treat documents longer than a row as in training; documents share a row only if the model
    isolates them.

    Arguments:
        section: section like `data.packing`.
        length: tokens of a row, S.
        isolates: whether the model isolates documents.
        marked: see `DocumentRows`.
        multiple: rows are padded to a multiple of this, after `section.pad_to_multiple_of`.

    Raises:
        SetpointError: a document is too long (with `too_long = "error"`), or no document is left.
    """
    isolated = bool(section.isolate)
    if section.method == "concatenate":
        return cut_rows(corpus, length, isolated=isolated, marked=marked)
    pieces = pieces_of(corpus, length, section.too_long)
    require_pieces(pieces, corpus, length)
    shared = isolates and isolated and section.method != "none"
    number = len(pieces.starts)
    bins = next_fit(pieces.lengths, length) if shared else np.arange(number)
    parts = Parts(pieces.starts, pieces.lengths, np.cumsum(np.bincount(bins)))
    return DocumentRows(
        corpus,
        length,
        numbered=parts,
        count=len(parts),
        isolated=shared,
        marked=marked,
        multiple=section.pad_to_multiple_of or multiple,
        row_tokens=int(pieces.lengths.sum()) / len(parts),
        layout=f"documents, {'next_fit' if shared else 'none'}, too_long = {section.too_long}",
        note=", ".join(pieces.notes),
    )
