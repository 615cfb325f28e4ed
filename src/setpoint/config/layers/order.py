"""The order in which overrides apply: as given, but a variant before its fields."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..files.limits import MAX_DEPTH

if TYPE_CHECKING:
    from .flags import Flag

# A flag's place among the others. Appended flags have (index, END). What goes right before a flag
# takes its key with a further number before END: later than what was put there already, and
# earlier than the flag.
Key = tuple[float, ...]
END = float("inf")
START: Key = (-1.0,)


def in_order(
    flags: Sequence[Flag],
    chooses: Callable[[Flag], bool],
    spreads: Callable[[Flag], bool] = lambda flag: False,
) -> list[Flag]:
    """The order in which overrides apply: as given, but a variant before its fields.

    Arguments:
        flags: the overrides as given.
        chooses: whether one chooses a variant.
        spreads: whether one may reach the fields of any section, as a tag does.

    Returns:
        the same overrides; one that chooses stands before those for fields of its section, though
        not before a flag that sets the section as a whole, such as `null`, or what holds it.
    """
    order = _Order()
    keys = [order.place(flag.section[:MAX_DEPTH], chooses(flag), spreads(flag)) for flag in flags]
    return [flags[at] for at in sorted(range(len(flags)), key=keys.__getitem__)]


class _Order:
    """The keys of the flags so far; the time for each is that of the depth of its path."""

    def __init__(self) -> None:
        self._count = 0
        self._inserted: dict[Key, int] = {}  # how many were put right before a flag
        self._last: dict[tuple[str, ...], Key] = {}  # the last flag that sets a path as a whole
        self._first: dict[tuple[str, ...], Key] = {}  # the first one below a path, after that
        self._spread: list[Key] = []  # those that may be below any path, in order

    def place(self, section: tuple[str, ...], chooses: bool, spreads: bool) -> Key:
        """The key of the next flag.

        Arguments:
            section: what it sets.
            chooses: whether it chooses a variant.
            spreads: whether it may set something in any section.

        Returns:
            its key.
        """
        key: Key = (self._count, END)
        self._count += 1
        # What sets a path as a whole, or what holds it, must stay before what follows it.
        barrier = START
        barriers: list[Key] = []
        for depth in range(len(section) + 1):
            barrier = max(barrier, self._last.get(section[:depth], START))
            barriers.append(barrier)
        follower = self._follower(section, barrier) if chooses else None
        if follower is not None:
            number = self._inserted[follower] = self._inserted.get(follower, 0) + 1
            key = (*follower[:-1], number, END)
        for depth in range(len(section)):
            first = self._first.get(section[:depth], START)
            if first < barriers[depth] or first == START or key < first:
                self._first[section[:depth]] = key
        self._last[section] = max(key, self._last.get(section, START))
        if spreads:
            self._spread.append(key)
        return key

    def _follower(self, section: tuple[str, ...], barrier: Key) -> Key | None:
        """The first flag behind the barrier that sets something in the section."""
        below = self._first.get(section, START)
        at = bisect_right(self._spread, barrier)
        found = self._spread[at : at + 1] + ([below] if below > barrier else [])
        return min(found, default=None)
