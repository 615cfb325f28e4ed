"""Which checkpoints stay, and why; what has no reason to stay may go. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from setpoint.config import SetpointError
from setpoint.units import Period

from .folder import POINTERS, STATE, UnreadPointer, list_checkpoints, read_pointer
from .manifest import decode_state, read_manifest, read_verified

At = Literal["powers_of_two"] | tuple[int, ...] | None
"""Steps by name: a list of them, or 1, 2, 4, 8 and so on."""


def is_named(at: At, step: int) -> bool:
    """Whether a step is one of those."""
    if at == "powers_of_two":
        return step > 0 and not step & (step - 1)
    return at is not None and step in at


@dataclass(frozen=True, slots=True)
class Retention:
    """What stays of a run's checkpoints.

    Arguments:
        keep: how many of the newest stay, at least 1; None keeps all.
        every: of each such interval the first checkpoint stays for ever.
        at: the checkpoints of these steps stay for ever.
    """

    keep: int | None = 2
    every: Period | None = None
    at: At = None

    def reasons(
        self,
        steps: Iterable[int],
        protected: Mapping[int, str],
        distance: Callable[[int, str], float | None] = lambda step, unit: None,
    ) -> dict[int, list[str]]:
        """Why each checkpoint stays.

        Arguments:
            protected: steps that stay in any case, with the reason; they do not count for `keep`
                if they are older.
            distance: how far a run was at a step, in a unit of periods; None where it is unknown.

        Returns:
            step to reasons, oldest first; without one, it may go.
        """
        every, known = self.every, sorted(steps)
        if every is not None and every.unit == "never":
            every = None
        newest = set(known if self.keep is None else known[-self.keep :])
        found: dict[int, list[str]] = {step: [] for step in known}
        # What is kept of an interval is the first there, so that it is the same after a removal.
        taken: set[int] = set()
        for step, why in found.items():
            if step in protected:
                why.append(protected[step])
            if step in newest:
                why.append("all" if self.keep is None else f"newest {self.keep}")
            if is_named(self.at, step):
                why.append("at")
            if every is None:
                continue
            at = distance(step, every.unit)
            if at is None:
                why.append("position unknown")
            elif (number := every.multiples_in(at)) and number not in taken:
                taken.add(number)
                why.append(f"every {every}")
        return found


class Positions:
    """How far a run was at its checkpoints, each read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[int, dict[str, float] | None] = {}

    def distance(self, step: int, unit: str) -> float | None:
        """The position of a checkpoint in a unit of periods; None where it cannot be read."""
        if unit == "steps":
            return step
        if self._read.get(step) is None:
            self._read[step] = self._position_at(step)
        return (self._read[step] or {}).get(unit)

    def _position_at(self, step: int) -> dict[str, float] | None:
        folder = list_checkpoints(self.root).get(step)
        try:
            if folder is None:
                return None
            state = decode_state(bytes(read_verified(folder, read_manifest(folder), STATE)))
        except (SetpointError, KeyError, ValueError):
            return None
        found = state.get("position")
        return found if isinstance(found, dict) else None


def protected_by_pointers(root: Path) -> dict[int, str] | None:
    """The steps that `latest` and `best` name.

    Returns:
        step to the names; None where one is there and cannot be read, so that nothing may go.
    """
    found: dict[int, str] = {}
    for name in POINTERS:
        try:
            step = read_pointer(root, name)
        except UnreadPointer:
            return None
        except SetpointError:
            continue
        if step is not None:
            found[step] = f"{found[step]}, {name}" if step in found else name
    return found
