"""Sizes for people."""

from __future__ import annotations


def in_units(size: int) -> str:
    """Write a size with three digits.

    Returns:
        for instance `1.25 GiB`.
    """
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}"
