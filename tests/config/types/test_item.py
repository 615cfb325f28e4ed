from typing import Any

import pytest

from setpoint.config import Invalid, Secret, ref
from setpoint.config.types.base import read_item
from setpoint.config.types.compiler import compile_annotation
from setpoint.config.values.origin import PROGRAM, Origin
from setpoint.config.words.plain_data import PlainScalar

from ..sample import Batch

ORIGIN = Origin(PROGRAM)
W = PlainScalar


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (int, "${a}", ref("a")),
        (int, ref("a"), ref("a")),
        (int, 3, 3),
        (tuple[int, ...], W("${a}"), ref("a")),
        (tuple[int, ...], W("3, ${a}"), (3, ref("a"))),
        (tuple[int, ...], W("${a},${b}"), (ref("a"), ref("b"))),
        (dict[str, int], W("{x: ${a}}"), {"x": ref("a")}),
        (tuple[tuple[int, ...], ...], [W("[1, ${a}]")], ((1, ref("a")),)),
        (Batch, "${a}", ref("a")),
    ],
)
def test_what_is_read(annotation: Any, value: object, stored: object) -> None:
    assert read_item(compile_annotation(annotation, "here"), value, ORIGIN) == stored


def test_secrets_are_no_references() -> None:
    for value in ("${a}", ref("a")):
        with pytest.raises(Invalid) as caught:
            read_item(compile_annotation(Secret, "here"), value, ORIGIN)
        assert caught.value.secret
