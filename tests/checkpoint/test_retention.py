"""Which checkpoints may go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from setpoint.checkpoint.retention import surplus


@given(
    steps=st.sets(st.integers(0, 50)),
    keep=st.none() | st.integers(1, 60),
    protected=st.sets(st.integers(0, 50)),
)
def test_surplus(steps: set[int], keep: int | None, protected: set[int]) -> None:
    gone = surplus(steps, keep=keep, protected=protected)
    left = steps - set(gone)
    assert gone == sorted(gone)
    assert set(gone) <= steps
    assert steps & protected <= left
    newest = set(sorted(steps, reverse=True)[: len(steps) if keep is None else keep])
    assert left == newest | (steps & protected)
