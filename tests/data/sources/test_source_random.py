import hashlib
import math
from collections import Counter
from itertools import pairwise

import pytest

from setpoint.data.sources.config import Random
from setpoint.data.sources.synthetic import RandomSource


def text(**fields: object) -> bytes:
    config = Random(**{"documents": 1, "length": 100_000, **fields})  # pyright: ignore[reportArgumentType]
    (document,) = RandomSource(config).documents()
    return document.data


def test_the_text_of_a_seed_never_changes() -> None:
    digest = hashlib.sha256(text(length=1000)).hexdigest()
    assert digest == "504e00c992682cfee6a7d676d3ce85a6b96c20c705cc2566d55a00f909c91432"


@pytest.mark.parametrize("pattern", ["markov", "uniform"])
@pytest.mark.parametrize("alphabet", [2, 256])
def test_single_bytes_are_uniform_over_the_alphabet(pattern: str, alphabet: int) -> None:
    counts = Counter(text(pattern=pattern, alphabet=alphabet))
    assert set(counts) == {(32 + i) % 256 for i in range(alphabet)}
    mean = 100_000 / alphabet
    assert all(abs(count - mean) < 8 * math.sqrt(mean) for count in counts.values())


def test_markov_goes_to_the_next_symbol_as_often_as_entropy_assumes() -> None:
    data = text(alphabet=26)
    steps = Counter((b - a) % 26 for a, b in pairwise(data))
    frequencies = [count / (len(data) - 1) for count in steps.values()]
    assert steps[1] / (len(data) - 1) == pytest.approx(0.75 + 0.25 / 26, abs=0.01)
    measured = -sum(f * math.log2(f) for f in frequencies)
    assert RandomSource(Random(alphabet=26)).entropy() == pytest.approx(measured, abs=0.02)
