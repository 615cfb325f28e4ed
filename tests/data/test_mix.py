from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.data.mix import permutation, random_bits

MASK = 2**64 - 1


def splitmix64(state: int, count: int) -> list[int]:
    """The published algorithm, word by word in Python's own integers."""
    words: list[int] = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        words.append(z ^ (z >> 31))
    return words


def test_the_oracle_gives_the_published_first_words_of_seed_1234567() -> None:
    assert splitmix64(1234567, 3) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@given(key=st.text(), count=st.integers(0, 300))
@settings(max_examples=50, deadline=None)
def test_random_bits_are_splitmix64_from_the_hash_of_the_key(key: str, count: int) -> None:
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    assert random_bits(key, count).tolist() == splitmix64(start, count)


@given(key=st.text(), size=st.integers(0, 500))
@settings(max_examples=50, deadline=None)
def test_permutation_holds_each_index_once(key: str, size: int) -> None:
    assert sorted(permutation(key, size).tolist()) == list(range(size))


def test_permutations_of_other_keys_are_unrelated() -> None:
    first, second = permutation("0", 10_000), permutation("1", 10_000)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert (first == second).sum() < 10  # a random pair agrees in one place on average


def test_every_index_is_about_equally_often_first() -> None:
    counts = np.bincount([permutation(str(key), 5)[0] for key in range(2000)], minlength=5)
    assert counts.min() > 320
    assert counts.max() < 480
