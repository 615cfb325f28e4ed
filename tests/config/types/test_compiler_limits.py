"""What stands beside a field must fit its type."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from setpoint.config import SetpointError, resolve
from setpoint.units import ByteSize, Period

from .test_default import wrong

RIGHT: list[tuple[object, dict[str, Any]]] = [
    (int | None, {"default": None, "ge": 1}),
    (int | Literal["auto"], {"default": "auto", "ge": 1}),
    (ByteSize, {"default": ByteSize("1 MiB"), "gt": 0}),
    (Any, {"default": 3, "ge": 1}),
    (tuple[int, ...] | None, {"default": (1,), "item_ge": 1}),
    (int | tuple[int, ...], {"default": 3, "item_ge": 1}),
]
WRONG: list[tuple[object, dict[str, Any], str]] = [
    (str, {"default": "a", "ge": 1}, "and this is a str"),
    (Period, {"default": Period("1 step"), "ge": 1}, "apply to numbers"),
    (tuple[int, ...], {"default": (1,), "ge": 1}, "those of items are item_gt"),
    (int, {"default": 1, "pattern": "a"}, "a pattern applies to str, and this is an int"),
    (str, {"default": "a", "pattern": "["}, r"the pattern '\[' is not a regular expression"),
    (str | None, {"default": None, "pattern": "["}, "is not a regular expression"),
    (int, {"default": 1, "item_ge": 1}, "for lists and mappings of numbers"),
    (list[str], {"factory": list, "item_ge": 1}, "for lists and mappings of numbers"),
]


@pytest.mark.parametrize(("kind", "options"), RIGHT)
def test_what_fits(kind: object, options: dict[str, Any]) -> None:
    resolve(wrong(kind, **options)())


@pytest.mark.parametrize(("kind", "options", "message"), WRONG)
def test_what_fits_nothing(kind: object, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SetpointError, match=message) as caught:
        resolve(wrong(kind, **options)())
    assert "Wrong.x: " in str(caught.value)
