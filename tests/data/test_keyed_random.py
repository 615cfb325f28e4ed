from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.data.order import random_bits, shuffled

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


def feistel(key: str, size: int, place: int) -> int:
    """The same network in Python's own integers."""
    half = 1
    while 4**half < size:
        half += 1
    keys = splitmix64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big"), 6)
    while True:
        left, right = divmod(place, 2**half)
        for each in keys:
            # One word of the generator whose state came to `each` plus the right half.
            (word,) = splitmix64((right + each - 0x9E3779B97F4A7C15) & MASK, 1)
            left, right = right, left ^ (word % 2**half)
        place = left * 2**half + right
        if place < size:
            return place


@given(key=st.text(), size=st.integers(1, 3000), data=st.data())
@settings(max_examples=50, deadline=None)
def test_shuffled_is_the_network(key: str, size: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), max_size=20))
    found = shuffled(key, size, np.array(places, dtype=np.int64))
    assert found.tolist() == [feistel(key, size, place) for place in places]


@pytest.mark.parametrize("size", [*range(1, 70), 1000, 1023, 1024, 1025, 65_537])
def test_an_order_holds_each_index_once(size: int) -> None:
    assert sorted(whole("x", size).tolist()) == list(range(size))


def whole(key: str, size: int) -> np.ndarray:
    return shuffled(key, size, np.arange(size))


def test_orders_of_other_keys_are_unrelated() -> None:
    first, second = whole("0", 10_000), whole("1", 10_000)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert abs(np.corrcoef(first, np.arange(10_000))[0, 1]) < 0.05
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.05
    assert (first == second).sum() < 10  # a random pair agrees in one place on average


@pytest.mark.parametrize("size", [2, 5, 17])
def test_every_index_is_about_equally_often_anywhere(size: int) -> None:
    """Chi-square of each place over 1,500 keys, far above what chance gives once in a million."""
    orders = np.stack([whole(str(key), size) for key in range(1500)])
    for place in orders.T:
        counts = np.bincount(place, minlength=size)
        statistic = float(((counts - 1500 / size) ** 2 / (1500 / size)).sum())
        assert statistic < size - 1 + 7 * (2 * size) ** 0.5, (size, counts)


def test_all_orders_of_few_are_about_equally_frequent() -> None:
    found = Counter(tuple(whole(str(key), 4).tolist()) for key in range(2400))
    assert len(found) == 24
    assert min(found.values()) > 50 and max(found.values()) < 160


def test_a_place_in_a_huge_order_costs_no_more() -> None:
    places = np.array([0, 1, 10**17], dtype=np.int64)
    found = shuffled("x", 10**18, places)
    assert found.tolist() == [feistel("x", 10**18, place) for place in places.tolist()]
