from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from setpoint.data.config import Data
from setpoint.data.corpus import Corpus
from setpoint.data.evaluation import ngram_baselines, ngram_bits
from setpoint.data.sources.config import Random
from setpoint.data.sources.synthetic import RandomSource
from setpoint.data.tokenizers.tokenizer import ByteTokenizer

from .in_memory import in_memory

Gram = tuple[int, ...]


class Counted:
    """The n-grams of a text and how often each context occurs, in dictionaries."""

    def __init__(self, grams: list[Gram]) -> None:
        self.grams = Counter(grams)
        self.contexts = Counter(gram[:-1] for gram in grams)

    def mix(self, gram: Gram, shorter: float, weight: float) -> float:
        seen = self.contexts[gram[:-1]]
        return weight * self.grams[gram] / seen + (1 - weight) * shorter if seen else shorter

    def bucket(self, gram: Gram) -> int:
        return self.contexts[gram[:-1]].bit_length()


def grams_of(tokens: list[int], n: int, separator: int) -> list[Gram]:
    padded = [separator] * (n - 1) + tokens
    return [tuple(padded[i : i + n]) for i in range(1, len(tokens))]


def likeliest_weight(counted: Counted, members: list[tuple[Gram, float]]) -> float:
    def likelihood(weight: float) -> float:
        terms = [counted.mix(gram, p, weight) for gram, p in members]
        return sum(map(math.log, [*terms, weight, 1 - weight]))

    low, high = 1e-12, 1 - 1e-12
    for _ in range(200):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if likelihood(a) < likelihood(b) else (low, b)
    return (low + high) / 2


def weights_by_bucket(counted: Counted, fitted: list[tuple[Gram, float]]) -> list[float]:
    known = sorted({counted.bucket(gram) for gram, _ in fitted} - {0})
    weights = [
        likeliest_weight(counted, [m for m in fitted if counted.bucket(m[0]) == bucket])
        for bucket in known
    ]
    return np.interp(range(64), known, weights).tolist() if known else [0.5] * 64


def brute_force(train: list[int], held_out: list[int], vocab: int, separator: int) -> list[float]:
    """The definition at the top of ngram.py, with dictionaries and a ternary search."""
    cut = len(train) - 1 - max(1, int(0.05 * (len(train) - 1)))
    slice_p = [1 / vocab] * (len(train) - 1 - cut)
    held_p = [1 / vocab] * (len(held_out) - 1)
    totals: list[float] = []
    for n in (1, 2, 3):
        grams, judged = grams_of(train, n, separator), grams_of(held_out, n, separator)
        part, whole = Counted(grams[:cut]), Counted(grams)
        fitted = list(zip(grams[cut:], slice_p, strict=True))
        weights = weights_by_bucket(part, fitted)
        slice_p = [part.mix(g, p, weights[part.bucket(g)]) for g, p in fitted]
        held_p = [
            whole.mix(g, p, weights[whole.bucket(g)]) for g, p in zip(judged, held_p, strict=True)
        ]
        totals.append(-sum(map(math.log2, held_p)))
    return totals


@pytest.mark.parametrize("seed", range(4))
def test_bits_equal_brute_force_on_a_small_text(seed: int) -> None:
    generator = np.random.default_rng(seed)
    vocab = 6
    # A text with structure: a cycle with noise, so that longer contexts do help.
    steps = np.where(generator.random(900) < 0.6, 1, generator.integers(0, 5, 900))
    tokens = np.concatenate([[5], np.cumsum(steps) % 5]).astype(np.uint16)
    tokens[::97] = 5
    train, held_out = tokens[:700], tokens[700:]
    expected = brute_force(train.tolist(), held_out.tolist(), vocab, 5)
    assert ngram_bits(train, held_out, vocab, 5) == pytest.approx(expected, rel=1e-6)


def test_probabilities_of_the_next_token_add_up_to_one() -> None:
    generator = np.random.default_rng(0)
    train = generator.choice(5, size=400, p=[0.5, 0.2, 0.2, 0.1, 0.0]).astype(np.uint16)
    for history in ([4, 0, 1], [4, 3, 3], [4, 4, 4]):  # 4 is new, 3 3 is rare
        before = ngram_bits(train, np.array(history, dtype=np.uint16), 5, 4)
        after = [
            ngram_bits(train, np.array([*history, token], dtype=np.uint16), 5, 4)
            for token in range(5)
        ]
        for order in range(3):
            total = sum(2 ** (before[order] - bits[order]) for bits in after)
            assert total == pytest.approx(1, abs=1e-9)


def test_larger_vocabularies_need_wider_codes_and_give_the_same_model() -> None:
    generator = np.random.default_rng(1)
    train, held_out = generator.integers(0, 4, 600), generator.integers(0, 4, 100)
    narrow = brute_force(train.tolist(), held_out.tolist(), 40_000, 39_999)
    wide = ngram_bits(train.astype(np.uint16), held_out.astype(np.uint16), 40_000, 39_999)
    assert wide == pytest.approx(narrow, rel=1e-6)


@pytest.mark.parametrize("alphabet", [8, 64])
@pytest.mark.parametrize("pattern", ["markov", "uniform"])
def test_baselines_find_the_entropy_of_synthetic_text(alphabet: int, pattern: str) -> None:
    source = Random(documents=200, length=2000, alphabet=alphabet, seed=3)
    source.pattern = pattern  # pyright: ignore[reportAttributeAccessIssue]
    (train,), held_out = in_memory(Data(sources=(source,), held_out=0.2), ByteTokenizer())
    bits = ngram_baselines([train], held_out)
    entropy = RandomSource(source).entropy()
    # A little above: the ends of documents cost bits too, and counting is not knowing.
    assert 0 < bits.unigram - math.log2(alphabet) < 0.02
    assert -0.02 < bits.bigram - entropy < 0.05
    assert bits.trigram < bits.unigram + 0.05


def test_text_that_was_never_seen_costs_finite_bits(corpus_of: Callable[..., Corpus]) -> None:
    bits = ngram_baselines([corpus_of(b"a" * 50)], corpus_of(b"zzz"))
    assert all(math.isfinite(value) for value in bits)
    assert bits.unigram > 8


def test_the_smallest_corpora_work(corpus_of: Callable[..., Corpus]) -> None:
    bits = ngram_baselines([corpus_of(b"a")], corpus_of(b"a"))
    assert all(math.isfinite(value) and value >= 0 for value in bits)


def test_inputs_are_left_as_they_were(corpus_of: Callable[..., Corpus]) -> None:
    train, held_out = corpus_of(b"banana bandana"), corpus_of(b"ban")
    before = train.tokens.copy(), held_out.tokens.copy()
    ngram_baselines([train], held_out)
    assert np.array_equal(train.tokens, before[0])
    assert np.array_equal(held_out.tokens, before[1])
