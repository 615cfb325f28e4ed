"""Evaluation data: rows in a fixed order, the same at each evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.loader import Loader
from setpoint.data.packed import ConcatenatedSequences, PackedSequences
from setpoint.data.packing import PackedRows, next_fit, pieces_of, require_pieces
from setpoint.data.store import DataIdentity, slices
from setpoint.data.windows import Windows, evaluation_windows
from setpoint.shapes.batch import Batch

if TYPE_CHECKING:
    from setpoint.data.config import Packing
    from setpoint.data.sequences import CountedSequences
    from setpoint.data.store import Corpus

Ints = npt.NDArray[np.int64]
Named = tuple[str, Ints]
"""Rows of one of several texts."""


@dataclass(frozen=True, slots=True, eq=False)
class DocumentRows:
    """Rows of whole documents in the order of the corpus: `CountedSequences`.

    Arguments:
        packed: makes their batches.
        order: all rows.
        layout: see `Windows.layout`.
        note: documents that were divided or left out, in words; empty: none.
    """

    packed: PackedSequences
    order: PackedRows
    layout: str
    note: str = ""

    @property
    def corpus(self) -> Corpus:
        """The documents."""
        return self.packed.corpus

    @property
    def identity(self) -> DataIdentity:
        """See `Sequences`."""
        return self.packed.identity

    @property
    def sources(self) -> tuple[str, ...]:
        """See `Sequences`."""
        return self.packed.sources

    @property
    def sequence_length(self) -> int:
        """See `Sequences`."""
        return self.packed.sequence_length

    @property
    def epoch_rows(self) -> int:
        """See `Sequences`."""
        return len(self.order)

    def __len__(self) -> int:
        return len(self.order)

    def rows(self, rows: Ints) -> Batch:
        """Some of them, (B,) numbers in 0 .. len - 1, as a batch."""
        return self.packed.rows(self._named(rows))

    def describe(self, rows: Ints) -> str:
        """Name their first documents."""
        return self.packed.describe(self._named(rows))

    def first(self, count: int | None) -> Corpus:
        """The tokens of the first rows as a corpus, `trained` where they are predicted.

        A separator stands in front of each document, so that n-grams up to the third order see
        nothing of the one before.
        """
        rows, corpus = self.order[:count], self.corpus
        separator = np.array([corpus.separator], corpus.tokens.dtype)
        tokens, predicted = [separator], [np.zeros(1, np.bool_)]
        ends = rows.starts + rows.lengths + 1
        for piece in slices(corpus.tokens, rows.starts, ends):
            tokens += [separator, piece]
            predicted += [np.array([False, False]), np.ones(len(piece) - 1, np.bool_)]
        if corpus.trained is not None:
            marks = slices(corpus.trained, rows.starts + 1, ends)
            predicted[2::2] = [np.asarray(mark, np.bool_) for mark in marks]
        return corpus.part(np.concatenate(tokens), np.concatenate(predicted))

    def _named(self, rows: Ints) -> PackedRows:
        return PackedRows.joined([self.order[row : row + 1] for row in rows.tolist()])


EvaluationRows = Windows | DocumentRows


def evaluation_rows(
    corpus: Corpus,
    section: Packing,
    length: int,
    *,
    isolates: bool = True,
    marked: bool = False,
    multiple: int | None = None,
) -> EvaluationRows:
    """Lay documents into rows as training reads them, in the order of the corpus.

    What training concatenates is cut into windows. Otherwise each document is predicted by itself,
    and one that is longer than a row is treated as in training; several share a row only where the
    model isolates them.

    Arguments:
        section: as `data.packing`.
        length: tokens of a row, S.
        isolates: whether the model takes documents.
        marked: see `PackedSequences`.
        multiple: rows are padded as with `section.pad_to_multiple_of`, which comes first.

    Raises:
        SetpointError: a document is too long and that is an error, or none is left.
    """
    isolated = bool(section.isolate)
    if section.method == "concatenate" and corpus.trained is not None:
        rows = ConcatenatedSequences(corpus, length, isolated=isolated, marked=marked, partial=True)
        layout = f"{'isolated ' * isolated}documents, concatenated"
        packed = PackedSequences(
            corpus, length, len(rows), isolated=isolated, marked=marked, row_tokens=length
        )
        return DocumentRows(packed, rows.pieces(np.arange(len(rows))), layout)
    if section.method == "concatenate":
        return evaluation_windows(corpus, length, bool(section.isolate))
    pieces = pieces_of(corpus, length, section.too_long)
    require_pieces(pieces, corpus, length)
    shared = isolates and bool(section.isolate) and section.method != "none"
    number = len(pieces.starts)
    bins = next_fit(pieces.lengths, length) if shared else np.arange(number)
    count = int(bins[-1]) + 1
    packed = PackedSequences(
        corpus,
        length,
        count,
        isolated=shared,
        marked=marked,
        multiple=section.pad_to_multiple_of or multiple,
        row_tokens=int(pieces.lengths.sum()) / count,
    )
    order = PackedRows(pieces.starts, pieces.lengths, np.cumsum(np.bincount(bins)))
    layout = f"documents, {'next_fit' if shared else 'none'}, too_long = {section.too_long}"
    return DocumentRows(packed, order, layout, ", ".join(pieces.notes))


class EvaluationFeed:
    """Batches over texts from the first sequence on, the same at each pass.

    Documents come in the order of the split's hash, so the first sequences are a fair sample of
    all. Each target is predicted exactly once. The result of an evaluation depends on the limits,
    not on how sequences are grouped by `micro_size`.

    Workers live from the first pass to `close`. They make the texts in turn, again and again: the
    first batches of a pass are there before it is asked for.

    Arguments:
        texts: each with how many of its sequences are taken; None, or above what there is: all.
        micro_size: B, sequences in a batch of one rank; the last batch of a text may be smaller.
        data_rank, data_size: of this process among those that divide the texts among them.
        workers: processes that make batches ahead; 0: this one makes them when they are taken. The
            rest is for them: see `setpoint.data.loader.Loader`.

    Raises:
        SetpointError: a number is below 1.
    """

    def __init__(
        self,
        texts: Mapping[str, tuple[CountedSequences, int | None]],
        *,
        micro_size: int,
        data_rank: int = 0,
        data_size: int = 1,
        workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
        timeout: float = 0.0,
    ) -> None:
        for name, value in (
            ("batch.micro_size", micro_size),
            *(("evaluation sequences", limit) for _, limit in texts.values()),
        ):
            if value is not None and value < 1:
                raise SetpointError(f"{name}: {value} is below 1.\nValid: 1 or more.")
        self.texts = _Texts({name: sequences for name, (sequences, _) in texts.items()})
        self.totals = {
            name: len(sequences) if limit is None else min(len(sequences), limit)
            for name, (sequences, limit) in texts.items()
        }
        """Sequences of each text that a pass takes, on all ranks together."""
        self.micro_size = micro_size
        self.data_rank, self.data_size = data_rank, data_size
        self.workers, self.prefetch = workers, prefetch
        self.pin_memory, self.timeout = pin_memory, timeout
        self._loader: Loader | None = None
        self._next = ""

    def batches(self, name: str) -> Iterator[Batch]:
        """A pass over a text.

        Raises:
            RunError: a worker died or hangs, or could not make a row.
        """
        if not self.workers:
            yield from map(self.texts.rows, self._pass(name))
            return
        if name != self._next:
            self.close()
        if self._loader is None:
            self._loader = Loader(
                self.texts,
                self._passes(name),
                workers=self.workers,
                prefetch=self.prefetch,
                pin_memory=self.pin_memory,
                timeout=self.timeout,
                section="data.loader.evaluation",
            )
        self._next = ""  # a pass that is left before its end leaves batches behind
        for _ in self._pass(name):
            yield next(self._loader)
        self._next = self._after(name)

    @property
    def together(self) -> int:
        """The sequences that one batch of each rank makes up; the last ones may be fewer."""
        return self.micro_size * self.data_size

    def own(self, name: str) -> int:
        """The sequences of a text that this rank counts, which are the first of its pass.

        Ranks that divide weights must compute the same number of batches: where fewer sequences
        are left than ranks, those without one compute another's, which they do not count.
        """
        whole, rest = divmod(self.totals[name], self.together)
        return whole * self.micro_size + (rest + self.data_size - 1 - self.data_rank) // (
            self.data_size
        )

    def _pass(self, name: str) -> Iterator[Named]:
        indices = np.arange(self.totals[name])
        for first in range(0, len(indices), self.together):
            batch = indices[first : first + self.together]
            own = np.array_split(batch, self.data_size)[self.data_rank]
            yield name, own if len(own) else batch[:1]

    def _passes(self, name: str) -> Iterator[Named]:
        while True:
            yield from self._pass(name)
            name = self._after(name)

    def _after(self, name: str) -> str:
        names = [*self.totals]
        return names[(names.index(name) + 1) % len(names)]

    def close(self) -> None:
        """End the workers; `batches` may be called again, which starts them anew."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None


class _Texts:
    """Several texts, whose rows name the one that they are of."""

    def __init__(self, texts: Mapping[str, CountedSequences]) -> None:
        self.texts = texts

    def rows(self, rows: Named) -> Batch:
        name, indices = rows
        return self.texts[name].rows(indices)

    def describe(self, rows: Named) -> str:
        name, indices = rows
        return self.texts[name].describe(indices)
