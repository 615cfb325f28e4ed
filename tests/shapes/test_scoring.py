"""Perplexity and bits per byte against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from setpoint.shapes.scoring import bits_per_byte, perplexity


@pytest.mark.parametrize("classes", [2, 257, 50_304])
def test_uniform_over_classes_is_as_hard_as_so_many(classes: int) -> None:
    assert perplexity(math.log(classes)) == pytest.approx(classes, rel=1e-12)


@pytest.mark.parametrize("loss", [0.0, 1e-9, 3.25, 20.5, 700.0])
def test_no_upper_limit(loss: float) -> None:
    assert perplexity(loss) == pytest.approx(float(np.exp(loss)), rel=1e-14)


def test_beyond_the_largest_float_it_is_infinite() -> None:
    assert perplexity(709.0) < math.inf
    assert perplexity(710.0) == perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_bits_per_byte() -> None:
    # A token of four bytes that has the probability 1 / 16 costs four bits, one for each byte.
    assert bits_per_byte(3 * math.log(16), 12) == pytest.approx(1.0, rel=1e-15)
    assert bits_per_byte(math.log(2), 8) == pytest.approx(0.125, rel=1e-15)
