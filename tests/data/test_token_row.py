"""Rows over several arrays are read as if they were one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from setpoint.data.corpus import JoinedRow, gather, slices

PARTS = st.lists(st.lists(st.integers(0, 60000), max_size=7), min_size=1, max_size=5)


@given(PARTS, st.data())
def test_reads_as_one_array(parts: list[list[int]], data: st.DataObject) -> None:
    row = JoinedRow([np.array(part, np.uint16) for part in parts])
    whole = np.concatenate([np.array(part, np.uint16) for part in parts])
    assert len(row) == len(whole)
    a, b = data.draw(st.integers(-30, 30)), data.draw(st.integers(-30, 30))
    assert row[a:b].tolist() == whole[a:b].tolist()
    if len(whole):
        starts = np.array(data.draw(st.lists(st.integers(0, len(whole) + 3), min_size=1)))
        width = data.draw(st.integers(1, 9))
        wanted = whole[np.minimum(starts[:, None] + np.arange(width), len(whole) - 1)]
        assert gather(row, starts, width).tolist() == wanted.tolist()
        ranges = data.draw(st.lists(st.tuples(*[st.integers(0, len(whole))] * 2), min_size=1))
        first, last = np.array([sorted(each) for each in ranges]).T
        found = [each.tolist() for each in slices(row, first, last)]
        assert found == [whole[a:b].tolist() for a, b in zip(first, last, strict=True)]
