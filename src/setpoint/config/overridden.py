"""What a modifier set and a later layer set to something else."""

from __future__ import annotations

from collections.abc import Iterator

from .base import Config
from .origin import DERIVED, MODIFIER, REFERENCE, Recorded
from .types.base import shown_plain
from .walk import leaves


def overridden(config: Config) -> Iterator[str]:
    """The values of modifiers that somebody asked for and that a later layer replaced.

    Arguments:
        config: the root, merged or resolved.

    Returns:
        a line for each, with the value of the modifier and the origin of the one that counts.
    """
    for leaf in leaves(config):
        by_modifier = [
            (origin, value)
            for origin, value in leaf.chain[:-1]
            if origin.layer == MODIFIER and not isinstance(origin, Recorded)
        ]
        if not by_modifier:
            continue
        origin, value = by_modifier[-1]
        winner, last = leaf.chain[-1]
        itself = winner.layer == MODIFIER and winner.label == origin.label
        if itself or winner.layer in (DERIVED, REFERENCE) or last == value:
            continue
        yield (
            f"{leaf.key} = {_shown(value)} of --with {origin.label}, "
            f"by {winner.describe(leaf.path)}"
        )


def _shown(value: object) -> str:
    if isinstance(value, Config):
        return type(value).__setpoint__.tag or "a section"
    return shown_plain(value)
