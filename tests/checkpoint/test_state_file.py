"""States through JSON."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.checkpoint.state_file import decode_state, encode_state

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(), trees))
def test_round_trip(state: dict[str, object]) -> None:
    again = decode_state(encode_state(state))
    assert again == state
    assert list(again) == list(state)


@given(st.floats())
def test_floats_are_exact(value: float) -> None:
    again = decode_state(encode_state({"x": value}))["x"]
    if math.isnan(value):
        assert math.isnan(again)
    else:
        assert struct.pack("d", again) == struct.pack("d", value)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {"b": (1,)}}, "state.a.b is a tuple"),
        ({"a": [1, {2: 3}]}, r"state.a\[1\] has the key 2"),
        ({"a": {1, 2}}, "state.a is a set"),
        ({"a": b"x"}, "state.a is a bytes"),
    ],
)
def test_what_json_would_change_is_refused(state: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encode_state(state)


def test_only_a_mapping_is_a_state() -> None:
    with pytest.raises(ValueError, match="no mapping"):
        decode_state(b"[1]")
