"""Quick readers take plain values as the field's type would, and doubt all others."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.config import Config, ConfigError, field
from setpoint.config.schema.readers import DOUBT
from setpoint.config.values.origin import PROGRAM, Origin
from setpoint.config.words.errors import Invalid
from setpoint.config.words.texts import LiteralText, PlainScalar


class Kinds(Config):
    whole: int = field(default=1, ge=0, lt=10)
    number: float | None = field(default=None, gt=0)
    flag: bool = False
    text: str | None = None
    word: Literal["a", "b"] = "a"
    many: list[float] = field(factory=list)
    pair: tuple[int, str] = (1, "x")
    maybe: tuple[int, ...] | None = None


class Odd:
    """Has no truth value, and equals nothing in a way that could be asked."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # pyright: ignore[reportAssignmentType]


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5),
    st.sampled_from(["a", "null", "${seed}", "$${x}", "s3://me:pass@host", "inf", "\0", "\ud800"]),
    st.builds(PlainScalar, st.sampled_from(["1", "null", "[1, 2]", "true"])),
    st.just(LiteralText("${x")), st.just(Odd()), st.just(np.array([1.0, 2.0])),
    st.just(np.float64(2)),
)  # fmt: skip
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.tuples(scalars, scalars))


@settings(max_examples=800, deadline=None)
@given(st.sampled_from(sorted(Kinds.__setpoint__.fields)), values)
def test_what_is_not_doubted_is_what_the_type_reads(name: str, value: Any) -> None:
    quick = Kinds.__setpoint__.plan.reader(name)(value)
    if quick is DOUBT:
        return
    try:
        slow = Kinds.__setpoint__.fields[name].read(value, Origin(PROGRAM))
    except Invalid as error:
        raise AssertionError(f"{value!r} is taken, but {error.message}") from None
    assert repr(quick) == repr(slow) and type(quick) is type(slow)


def test_an_array_is_refused_in_words() -> None:
    for name in ("number", "text", "maybe"):
        with pytest.raises(ConfigError, match=f"Kinds.{name}"):
            setattr(Kinds(), name, np.array([1.0, 2.0]))


def test_names_that_no_field_has_are_not_kept() -> None:
    with pytest.raises(ConfigError):
        Kinds(hole=1)  # pyright: ignore[reportCallIssue]
    assert "hole" not in Kinds.__setpoint__.plan.readers
