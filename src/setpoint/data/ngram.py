"""What counting alone achieves: n-gram models as a yardstick for the trained one.

The models are interpolated as in Jelinek and Mercer, "Interpolated estimation of Markov source
parameters from sparse data" (1980), with weights by how often the context was seen, as in Chen and
Goodman, "An empirical study of smoothing techniques for language modeling" (1998):

    p_0(c)     = 1 / V
    p_n(c | h) = w_n(N(h)) * N(h c) / N(h) + (1 - w_n(N(h))) * p_{n-1}(c | shorter h)

N counts in the training tokens. Each weight is the one that maximises the likelihood of a slice of
the training side that its counts have not seen, and of two tokens more, one explained by each term:
they keep a weight seen on few tokens off 0 and 1. Then the slice is counted as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from setpoint.data.store import Corpus
from setpoint.data.tokenizers.tokenizer import TokenArray

SLICE = 0.05  # share of the training tokens on which the weights are fitted
BISECTIONS = 30  # weights to 2**-30

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Codes = npt.NDArray[np.unsignedinteger[Any]]


class Baselines(NamedTuple):
    """Held-out bits per byte of models that only count.

    Arguments:
        trigram: given the two bytes before.
    """

    unigram: float
    bigram: float
    trigram: float


def ngram_baselines(train: Sequence[Corpus], held_out: Corpus) -> Baselines:
    """Fit on one side, evaluate on the other, by the bookkeeping of the trained model.

    Every token but the first is predicted, separators too, and the bits are divided by the bytes;
    of a held-out corpus with `trained`, only these tokens.
    Costs one sort of the training tokens for each order, and 6 bytes of memory for each token.

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
    """Bits that models of order 1 to `order` need for the held-out tokens after the first.

    Arguments:
        predicted: (T - 1,) which of these count; None: all.

    Returns:
        `order` sums of -log2 p, the unigram's first.
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

        share, seen = _share(fitted, [counted], vocab_size)
        weights = _fit_weights(share, slice_p, seen)
        slice_p = _interpolate(share, slice_p, seen, weights)

        share, seen = _share(held_out_codes, [counted, np.sort(fitted)], vocab_size)
        held_out_p = _interpolate(share, held_out_p, seen, weights)
        results.append(float(-np.log2(held_out_p).sum()))
    return results


def _codes(tokens: TokenArray, n: int, vocab_size: int, separator: int) -> Codes:
    """One number for each n-gram that ends in a token after the first, (T - 1,)."""
    dtype = np.uint32 if vocab_size**n <= 2**32 else np.uint64
    padded = np.concatenate([np.full(n - 1, separator, dtype=tokens.dtype), tokens])
    codes = np.zeros(len(tokens) - 1, dtype=dtype)
    for offset in range(n):
        codes *= dtype(vocab_size)
        codes += padded[1 + offset : len(tokens) + offset]
    return codes


def _share(codes: Codes, counted: list[Codes], vocab_size: int) -> tuple[Floats, Counts]:
    """N(h c) / N(h) (0 where h is new) and N(h) for each n-gram, from sorted codes."""
    distinct, where = np.unique(codes, return_inverse=True)
    # All n-grams with one context are neighbours in the sorted row.
    low = distinct - distinct % distinct.dtype.type(vocab_size)
    high = low + distinct.dtype.type(vocab_size - 1)
    of_gram = sum(_occurrences(row, distinct, distinct) for row in counted)
    of_context = sum(_occurrences(row, low, high) for row in counted)
    share = of_gram / np.maximum(of_context, 1)
    return share[where], np.asarray(of_context)[where]


def _occurrences(row: Codes, low: Codes, high: Codes) -> Counts:
    """How many entries of a sorted row lie in [low, high]."""
    return np.searchsorted(row, high, "right") - np.searchsorted(row, low, "left")


def _bucket(seen: Counts) -> Counts:
    """0 for new contexts, else 1 + floor(log2(count)): contexts seen about equally often."""
    return np.frexp(seen.astype(np.float64))[1].astype(np.int64)


def _fit_weights(share: Floats, shorter: Floats | np.float64, seen: Counts) -> Floats:
    """The likeliest weight of each bucket, (64,); new contexts get 0.

    The log likelihood is concave in the weight, so its slope is bisected, all buckets at once.
    """
    buckets = _bucket(seen)
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
    share: Floats, shorter: Floats | np.float64, seen: Counts, weights: Floats
) -> Floats:
    """p_n for each n-gram."""
    weight = weights[_bucket(seen)]
    return weight * share + (1 - weight) * shorter
