"""Random numbers that are the same on every machine and in every version of Python."""

from __future__ import annotations

import hashlib
from decimal import Context, Decimal
from fractions import Fraction

# Decimal's logarithm and exponential are rounded correctly by definition; those of C libraries
# differ in the last digit from machine to machine.
CONTEXT = Context(prec=30)
BITS = 256


def draw(seed: int, index: int, name: str) -> Fraction:
    """One number, evenly spread over [0, 1).

    Arguments:
        name: of the axis; each has a stream of its own, whatever other axes there are.

    Returns:
        SHA-256 of the three, as a binary fraction.
    """
    digest = hashlib.sha256(f"{seed}/{index}/{name}".encode()).digest()
    return Fraction(int.from_bytes(digest, "big"), 2**BITS)


def linear(share: Fraction, low: float, high: float) -> float:
    """The number at a share of the way from one limit to the other."""
    exact = Decimal(repr(low)) + _decimal(share) * (Decimal(repr(high)) - Decimal(repr(low)))
    digits = 5 - (Decimal(repr(high)) - Decimal(repr(low))).adjusted()
    return _inside(exact.quantize(Decimal(1).scaleb(-digits), context=CONTEXT), low, high)


def logarithmic(share: Fraction, low: float, high: float) -> float:
    """The number at a share of the way, where equal factors are equal distances."""
    begin, end = (CONTEXT.ln(Decimal(repr(limit))) for limit in (low, high))
    exact = CONTEXT.exp(begin + _decimal(share) * (end - begin))
    return _inside(Context(prec=5).plus(exact), low, high)


def _decimal(share: Fraction) -> Decimal:
    return CONTEXT.divide(Decimal(share.numerator), Decimal(share.denominator))


def _inside(value: Decimal, low: float, high: float) -> float:
    return min(max(float(value), low), high)
