"""Which checkpoints may go."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def surplus(steps: Iterable[int], *, keep: int | None, protected: Collection[int]) -> list[int]:
    """The checkpoints beyond the last `keep`.

    Arguments:
        keep: how many of the newest stay, at least 1; None keeps all.
        protected: steps that stay in any case, and do not count for `keep` if they are older.
    """
    if keep is None:
        return []
    return [step for step in sorted(steps)[:-keep] if step not in protected]
