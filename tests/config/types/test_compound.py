"""Types of lists, tuples, mappings, unions and sections."""

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from setpoint.config import Invalid, Secret, ref
from setpoint.config.types.base import read_item
from setpoint.config.types.compiler import compile_annotation
from setpoint.config.types.compound import kind_at
from setpoint.config.values.origin import PROGRAM, Origin
from setpoint.config.words.plain_data import PlainScalar
from setpoint.units import Duration, Period

from ...support.snapshots import refused
from ..sample import Batch

ORIGIN = Origin(PROGRAM)
W = PlainScalar


def read(annotation: Any, value: object) -> Any:
    """A value read by the type of an annotation."""
    return compile_annotation(annotation, "here").read(value, ORIGIN)


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (int | None, W("null"), None),
        (str | None, "null", None),
        (tuple[int, ...], W("1,2"), (1, 2)),
        (tuple[int, ...], W("[1, 2,]"), (1, 2)),
        (tuple[float, str], [1, "a"], (1.0, "a")),
        (tuple[()], [], ()),
        (dict[str, int], W("{a: 1, b = 2}"), {"a": 1, "b": 2}),
        (Mapping[str, tuple[int, ...]], {"a": [1]}, {"a": (1,)}),
        (list[tuple[int, int]], W("[[1, 2], [3, 4]]"), [(1, 2), (3, 4)]),
        (int | str, W("3"), 3),
        (int | str, W("three"), "three"),
        (float | int, 3, 3),
        (int | Literal["auto"], W("auto"), "auto"),
        (Period | float, W("2 h"), Period("2 h")),
        (tuple[Duration, ...], [["1 h", 3]], (Duration("1 h", "3 steps"),)),
        (Any, W("[1, 2]"), (1, 2)),
        (object, {"a": [1]}, {"a": (1,)}),
    ],
)
def test_values_that_fit_are_stored(annotation: Any, value: object, stored: object) -> None:
    kind = compile_annotation(annotation, "here")
    result = kind.read(value, ORIGIN)
    assert result == stored
    assert result is None or type(stored) in type(result).__mro__
    assert kind.read(kind.dump(result), ORIGIN) == result


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (tuple[int, ...], "1,2"),
        (tuple[int, ...], {"a": 1}),
        (tuple[int, ...], [1, "x", 2.5]),
        (tuple[int, ...], W("1,x")),
        (tuple[float, float], [1]),
        (dict[str, int], [1]),
        (dict[str, int], {"a": "x"}),
        (dict[str, int], {1: 1}),
        (dict[str, int], {"\ud800": 1}),
        (dict[str, Batch], {"a.b": {}}),
        (dict[str, Batch], {"a": {"size": 0}}),
        (dict[str, Batch], W("{a: {size: 0")),
        (int | Literal["auto"], W("aut")),
        (tuple[tuple[int, ...], ...], [[1], [2, "x"]]),
        (tuple[int, ...], ["${a}$"]),
        (tuple[Secret, ...], ["${a}"]),
    ],
)
def test_values_that_do_not_fit_are_refused(annotation: Any, value: object) -> None:
    with refused(Invalid):
        read(annotation, value)


def test_every_wrong_item_is_named() -> None:
    with refused(Invalid):
        read(dict[str, tuple[int, ...]], {"a": [1, "x"], "b": ["y", 2.5], 3: []})


def test_the_items_with_their_types() -> None:
    kind = compile_annotation(tuple[int, tuple[Batch, ...] | None, dict[str, str]], "here")
    assert [(key, item) for key, item, _ in kind.items((1, None, {}))] == [
        (0, 1), (1, None), (2, {}),
    ]  # fmt: skip
    kinds = [inner.describe() for _, _, inner in kind.items((1, None, {}))]
    assert kinds[0] == "an int"
    named = kind_at(kind, (2, "a"))
    assert named is not None and named.describe() == "a str"
    assert kind_at(kind, (1, 3, "size")) is None
    assert list(compile_annotation(int, "here").items(3)) == []


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (int, "${a}", ref("a")),
        (int, 3, 3),
        (tuple[int, ...], W("${a}"), ref("a")),
        (tuple[int, ...], W("3, ${a}"), (3, ref("a"))),
        (dict[str, int], W("{x: ${a}}"), {"x": ref("a")}),
        (tuple[tuple[int, ...], ...], [W("[1, ${a}]")], ((1, ref("a")),)),
    ],
)
def test_words_are_read_by_the_types_of_items(
    annotation: Any, value: object, stored: object
) -> None:
    assert read_item(compile_annotation(annotation, "here"), value, ORIGIN) == stored


def test_secrets_are_no_references() -> None:
    for value in ("${a}", ref("a")):
        with pytest.raises(Invalid) as caught:
            read_item(compile_annotation(Secret, "here"), value, ORIGIN)
        assert caught.value.secret
