from typing import Any

import pytest

from setpoint.config.words.plain_data import plain, same


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        ([1, [2]], [1, [2]], True),
        ([1, [2]], [1, [2.0]], False),
        ([1], [1, 2], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"b": 1}, False),
        ([], {}, False),
        (None, None, True),
    ],
)
def test_kinds_count(left: Any, right: Any, equal: bool) -> None:
    assert same(left, right) is equal


def test_infinities_are_texts_that_their_fields_read_back() -> None:
    value = {"a": [float("inf"), 1.5], "b": float("-inf")}
    assert plain(value) == {"a": ["inf", 1.5], "b": "-inf"}
