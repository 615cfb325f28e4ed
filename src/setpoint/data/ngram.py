"""N-gram models of the training text, a baseline for the trained model.

They are interpolated as in Jelinek and Mercer, "Interpolated estimation of Markov source parameters
from sparse data" (1980), with weights that depend on how often the context was seen, as in Chen and
Goodman, "An empirical study of smoothing techniques for language modeling" (1998):

    p_0(c)     = 1 / V
    p_n(c | h) = w_n(N(h)) * N(h c) / N(h) + (1 - w_n(N(h))) * p_{n-1}(c | shorter h)

N counts occurrences in the training tokens. Each weight maximizes the likelihood of a slice of the
training side that is not yet counted, and of two further tokens, one explained by each term, which
keep weights based on few tokens away from 0 and 1. Then the slice is counted as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from setpoint.data.corpus import Corpus
    from setpoint.data.tokenizers.tokenizer import TokenArray

SLICE = 0.05  # share of the training tokens on which the weights are fitted
BISECTIONS = 30  # weights to 2**-30
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Codes = npt.NDArray[np.unsignedinteger[Any]]


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
