"""Evaluation data: rows in a fixed order, the same in every evaluation.

N-gram models of the training text are a baseline for the trained model. They are interpolated as in
Jelinek and Mercer, "Interpolated estimation of Markov source parameters from sparse data" (1980),
with weights that depend on how often the context was seen, as in Chen and Goodman,
"An empirical study of smoothing techniques for language modeling" (1998):

    p_0(c)     = 1 / V
    p_n(c | h) = w_n(N(h)) * N(h c) / N(h) + (1 - w_n(N(h))) * p_{n-1}(c | shorter h)

N counts occurrences in the training tokens. Each weight maximizes the likelihood of a slice of the
training side that is not yet counted, and of two further tokens, one explained by each term, which
keep weights based on few tokens away from 0 and 1. Then the slice is counted as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.loader import BatchLoader
from setpoint.data.order import Parts
from setpoint.data.packing import next_fit, pieces_of, require_pieces
from setpoint.data.rows import Cut, DocumentRows
from setpoint.shapes.batch import Batch

if TYPE_CHECKING:
    from setpoint.data.config import Packing
    from setpoint.data.corpus import Corpus
    from setpoint.data.tokenizers.tokenizer import TokenArray

Ints = npt.NDArray[np.int64]
TextRows = tuple[str, Ints]
"""The name of a data set, and numbers of its rows."""
SLICE = 0.05  # share of the training tokens on which the weights are fitted
BISECTIONS = 30  # weights to 2**-30
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Codes = npt.NDArray[np.unsignedinteger[Any]]


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


def cut_rows(
    corpus: Corpus, length: int, *, isolated: bool = False, marked: bool = False
) -> DocumentRows:
    """Cut a corpus into rows that predict each token but the first once; pad the last row.

    Adjacent rows share one token: the last target of a row is the first input of the next.
    """
    cut = Cut(corpus, length, stride=length, partial=True, divided=isolated)
    layout = "isolated windows" if isolated else "windows"
    if not cut.is_plain:
        layout = f"{'isolated ' * isolated}documents, concatenated"
    return DocumentRows(
        corpus, length, numbered=cut, count=cut.count, isolated=isolated,
        marked=marked and not cut.is_plain, layout=layout,
    )  # fmt: skip


class EvaluationFeed:
    """Batches of evaluation data, the same in each pass.

    Documents are in the order of the split's hash, so the first sequences are a fair sample.
    Each target is predicted exactly once. The result depends on the limits, not on `micro_size`.

    Workers live from the first pass to `close`. They cycle through the data sets, so the first
    batches of the next pass are prepared in advance.

    Arguments:
        texts: data sets, each with a limit on its sequences; None: all sequences.
        micro_size: B, sequences in a batch of one rank; the last batch of a text may be smaller.
        data_rank, data_size: rank and number of the data-parallel processes.
        workers: processes that prepare batches; 0: none. For the other options see
            `setpoint.data.loader.BatchLoader`.

    Raises:
        SetpointError: a number is below 1.
    """

    def __init__(
        self,
        texts: Mapping[str, tuple[DocumentRows, int | None]],
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
        self.available = {name: len(sequences) for name, (sequences, _) in texts.items()}
        """Sequences that each data set has."""
        self.totals = {
            name: count if (limit := texts[name][1]) is None else min(count, limit)
            for name, count in self.available.items()
        }
        """Sequences of each data set in a pass, over all ranks."""
        self.micro_size = micro_size
        self.data_rank, self.data_size = data_rank, data_size
        self.workers, self.prefetch = workers, prefetch
        self.pin_memory, self.timeout = pin_memory, timeout
        self._loader: BatchLoader | None = None
        self._next = ""

    def batches(self, name: str) -> Iterator[Batch]:
        """Iterate once over a data set.

        Raises:
            RunError: a worker died, hangs, or could not make a row.
        """
        if not self.workers:
            yield from map(self.texts.batch_of, self._pass(name))
            return
        if name != self._next:
            self.close()
        if self._loader is None:
            self._loader = BatchLoader(
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
        self._next = self._next_name(name)

    @property
    def global_batch_size(self) -> int:
        """Sequences in a batch over all ranks; the last batch may be smaller."""
        return self.micro_size * self.data_size

    def local_count(self, name: str) -> int:
        """Number of sequences counted by this rank: the first ones of its pass.

        Ranks that shard weights must run the same number of batches: if fewer sequences than ranks
        are left, a rank without one runs another rank's sequence without counting it.
        """
        full, remainder = divmod(self.totals[name], self.global_batch_size)
        return full * self.micro_size + (remainder + self.data_size - 1 - self.data_rank) // (
            self.data_size
        )

    def _pass(self, name: str) -> Iterator[TextRows]:
        indices = np.arange(self.totals[name])
        for first in range(0, len(indices), self.global_batch_size):
            batch = indices[first : first + self.global_batch_size]
            local_batch = np.array_split(batch, self.data_size)[self.data_rank]
            yield name, local_batch if len(local_batch) else batch[:1]

    def _passes(self, name: str) -> Iterator[TextRows]:
        while True:
            yield from self._pass(name)
            name = self._next_name(name)

    def _next_name(self, name: str) -> str:
        names = [*self.totals]
        return names[(names.index(name) + 1) % len(names)]

    def close(self) -> None:
        """Stop the workers; calling `batches` again restarts them."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None


class _Texts:
    """Several data sets, with rows planned by data set and number."""

    def __init__(self, texts: Mapping[str, DocumentRows]) -> None:
        self.texts = texts

    def batch_of(self, rows: TextRows) -> Batch:
        name, indices = rows
        return self.texts[name].batch_of(indices)

    def describe(self, rows: TextRows) -> str:
        name, indices = rows
        return self.texts[name].describe(indices)


class Baselines(NamedTuple):
    """Bits per byte of n-gram models on held-out text.

    Arguments:
        trigram: predicts each token from the two before it.
    """

    unigram: float
    bigram: float
    trigram: float


def ngram_baselines(train: Sequence[Corpus], held_out: Corpus) -> Baselines:
    """Fit n-gram models on the training data and evaluate them like the trained model.

    Every token but the first is predicted, including separators, and the bits are divided by the
    bytes; with a target mask, only its tokens count. This takes one sort of the training tokens per
    order, and 6 bytes of memory per token.

    Returns:
        bits per byte.
    """
    tokens = np.concatenate([corpus.tokens[:] for corpus in train])
    predicted = None if held_out.trained is None else held_out.trained[1 : len(held_out.tokens)]
    bits = ngram_bits(
        tokens, held_out.tokens[:], held_out.vocab_size, held_out.separator, predicted=predicted
    )
    return Baselines(*(total / held_out.byte_count for total in bits))


def ngram_bits(
    train: TokenArray,
    held_out: TokenArray,
    vocab_size: int,
    separator: int,
    order: int = 3,
    predicted: npt.NDArray[np.bool_] | None = None,
) -> list[float]:
    """Bits of the held-out tokens after the first, with models of order 1 to `order`.

    Arguments:
        predicted: (T - 1,) bool, the tokens to count; None: all.

    Returns:
        `order` sums of -log2 p, starting with the unigram's.
    """
    cut = len(train) - 1 - max(1, int(SLICE * (len(train) - 1)))
    slice_p = held_out_p = np.float64(1 / vocab_size)
    results: list[float] = []
    for n in range(1, order + 1):
        codes = _codes(train, n, vocab_size, separator)
        counted, fitted = codes[:cut], codes[cut:]
        counted.sort()
        held_out_codes = _codes(held_out, n, vocab_size, separator)
        if predicted is not None:
            held_out_codes = held_out_codes[predicted]

        share, counts = _share(fitted, [counted], vocab_size)
        weights = _fit_weights(share, slice_p, counts)
        slice_p = _interpolate(share, slice_p, counts, weights)

        share, counts = _share(held_out_codes, [counted, np.sort(fitted)], vocab_size)
        held_out_p = _interpolate(share, held_out_p, counts, weights)
        results.append(float(-np.log2(held_out_p).sum()))
    return results


def _codes(tokens: TokenArray, n: int, vocab_size: int, separator: int) -> Codes:
    """Integer code of the n-gram that ends in each token after the first, (T - 1,)."""
    dtype = np.uint32 if vocab_size**n <= 2**32 else np.uint64
    padded = np.concatenate([np.full(n - 1, separator, dtype=tokens.dtype), tokens])
    codes = np.zeros(len(tokens) - 1, dtype=dtype)
    for offset in range(n):
        codes *= dtype(vocab_size)
        codes += padded[1 + offset : len(tokens) + offset]
    return codes


def _share(codes: Codes, counted: list[Codes], vocab_size: int) -> tuple[Floats, Counts]:
    """N(h c) / N(h) (0 for an unseen h) and N(h) of each n-gram, from sorted codes."""
    distinct, where = np.unique(codes, return_inverse=True)
    # All n-grams with one context are neighbours in the sorted row.
    low = distinct - distinct % distinct.dtype.type(vocab_size)
    high = low + distinct.dtype.type(vocab_size - 1)
    of_gram = sum(_occurrences(row, distinct, distinct) for row in counted)
    of_context = sum(_occurrences(row, low, high) for row in counted)
    share = of_gram / np.maximum(of_context, 1)
    return share[where], np.asarray(of_context)[where]


def _occurrences(row: Codes, low: Codes, high: Codes) -> Counts:
    """Count the entries of a sorted array in [low, high]."""
    return np.searchsorted(row, high, "right") - np.searchsorted(row, low, "left")


def _bucket(counts: Counts) -> Counts:
    """Frequency class of contexts: 0 if unseen, else 1 + floor(log2(count))."""
    return np.frexp(counts.astype(np.float64))[1].astype(np.int64)


def _fit_weights(share: Floats, shorter: Floats | np.float64, counts: Counts) -> Floats:
    """Maximum-likelihood weight of each bucket, (64,); 0 for unseen contexts.

    The log likelihood is concave in the weight, so its slope is bisected, all buckets at once.
    """
    buckets = _bucket(counts)
    low, high = np.zeros(64), np.ones(64)
    gain = share - shorter
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        slope = np.bincount(buckets, gain / (shorter + middle[buckets] * gain), minlength=64)
        slope += 1 / middle - 1 / (1 - middle)
        low, high = np.where(slope > 0, middle, low), np.where(slope > 0, high, middle)
    weights = (low + high) / 2
    # A bucket the slice does not reach takes its weight from its neighbours.
    reached = np.unique(buckets[buckets > 0])
    if reached.size:
        weights = np.interp(np.arange(64), reached, weights[reached])
    weights[0] = 0.0
    return weights


def _interpolate(
    share: Floats, shorter: Floats | np.float64, counts: Counts, weights: Floats
) -> Floats:
    """Interpolated probability p_n of each n-gram."""
    weight = weights[_bucket(counts)]
    return weight * share + (1 - weight) * shorter
