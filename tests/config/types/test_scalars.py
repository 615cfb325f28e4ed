"""Types of single values."""

import enum
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from setpoint.config import Config, Invalid, Secret, resolve
from setpoint.config.draft.walk import to_plain
from setpoint.config.types.base import (
    BoolType,
    EnumType,
    FieldType,
    FloatType,
    IntType,
    LiteralType,
    PathType,
    PatternType,
    ScalarType,
    StrType,
)
from setpoint.config.values.origin import PROGRAM, Origin
from setpoint.config.words.plain_data import PlainScalar, unescaped
from setpoint.units import Duration, Period

from ...support.snapshots import refused
from ..sample import Mode

ORIGIN = Origin(PROGRAM)
W = PlainScalar
CHOICE = LiteralType(("auto", 3, True, 0.5))


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (IntType(), W("3"), 3),
        (IntType(), W("-1_000"), -1000),
        (IntType(), W("1e6"), 10**6),
        (IntType(), W("9" * 4000), int("9" * 4000)),
        (IntType(), enum.IntEnum("N", {"A": 4}).A, 4),
        (FloatType(), 3, 3.0),
        (FloatType(), W("1e-5"), 1e-5),
        (FloatType(), W("-Infinity"), float("-inf")),
        (FloatType(), "inf", float("inf")),
        (FloatType(), -0.0, 0.0),
        (BoolType(), W("false"), False),
        (BoolType(), W("True"), True),
        (StrType(), W("no"), "no"),
        (StrType(), "null", "null"),
        (PathType(), PurePosixPath("x"), Path("x")),
        (PathType(), W("~/x"), Path("~/x")),
        (CHOICE, W("auto"), "auto"),
        (CHOICE, W("3"), 3),
        (CHOICE, W("true"), True),
        (EnumType(Mode), "FAST", Mode.FAST),
        (EnumType(Mode), Mode.EXACT, Mode.EXACT),
    ],
)
def test_values_that_fit_are_stored(kind: FieldType, value: Any, stored: Any) -> None:
    read = kind.read(value, ORIGIN)
    assert read == stored
    assert type(read) is type(stored)
    assert str(read) == str(stored) if not isinstance(stored, int) else True
    dumped = kind.dump(read)
    assert kind.read(dumped, ORIGIN) == read


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (IntType(), 7.0), (IntType(), W("7.9")),
        pytest.param(IntType(), W("9" * 5000), id="many digits"), (IntType(), W("0x1G")),
        (IntType(), "7"), (IntType(), True), pytest.param(IntType(), 10**5000, id="huge"),
        (FloatType(), "1.0"), (FloatType(), W("1.0_5")), (IntType(), W("\uff15")),
        (IntType(), W("1_0")), (FloatType(), W("nan")), (FloatType(), W("1e999")),
        pytest.param(FloatType(), 10**400, id="float"), (BoolType(), 1), (BoolType(), "true"),
        (BoolType(), W("ture")), (StrType(), 3), (StrType(), Colour.RED), (StrType(), "\ud800"),
        (PathType(), ""), (PathType(), "a\0b"), (CHOICE, "3"), (CHOICE, W("aut")),
        (EnumType(Mode), "fast"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(kind: FieldType, value: Any) -> None:
    with refused(Invalid):
        kind.read(value, ORIGIN)


def test_a_path_called_null_is_written_so_that_it_reads_back() -> None:
    kind = PathType()
    assert kind.dump(Path("null")) == "./null"
    assert kind.dump(Path("a") / "null") == "a/null"


KINDS = [IntType(), FloatType(), BoolType(), StrType(), PathType(), CHOICE, EnumType(Mode)]


@given(st.sampled_from(KINDS), st.text() | st.integers() | st.floats() | st.none() | st.booleans())
def test_any_value_is_taken_or_refused(kind: FieldType, value: Any) -> None:
    for given_value in (value, W(value) if isinstance(value, str) else value):
        try:
            read = kind.read(given_value, ORIGIN)
        except Invalid as error:
            str(error).encode()
        else:
            assert kind.read(kind.dump(read), ORIGIN) == read


@pytest.mark.parametrize(
    ("text", "value"), [("0x1F", 31), ("0X1f", 31), ("0o17", 15), ("0b101", 5), ("-0x10", -16)]
)
def test_prefixes_mean_in_flags_and_yaml_what_they_mean_in_toml(text: str, value: int) -> None:
    assert IntType().read(PlainScalar(text), ORIGIN) == value
    assert FloatType().read(PlainScalar(text), ORIGIN) == value


def test_wrong_digits_after_a_prefix_are_refused() -> None:
    for wrong in ("0x", "0xg", "x1F", "0o8", "0b2", "0x" + "f" * 4000):
        with refused(Invalid):
            IntType().read(PlainScalar(wrong), ORIGIN)
    with refused(Invalid):
        FloatType().read(PlainScalar("0x" + "f" * 400), ORIGIN)


class Fraction(str):
    __slots__ = ()
    __setpoint_scalar__ = "a fraction such as 1/3"

    @classmethod
    def read(cls, value: object) -> "Fraction":
        if not isinstance(value, str) or value.count("/") != 1:
            raise Invalid("is not a fraction")
        return cls(value)

    def dump(self) -> str:
        return str(self)


def test_value_classes_read_and_write_themselves() -> None:
    for cls, text in ((Period, "3 steps"), (Duration, "1 h"), (Secret, "env:X"), (Fraction, "1/3")):
        kind = ScalarType(cls)
        value = kind.read(PlainScalar(text), ORIGIN)
        assert isinstance(value, cls)
        assert kind.read(kind.dump(value), ORIGIN) == value
        assert kind.describe() == cls.__setpoint_scalar__
        assert kind.is_secret() == (cls is Secret)


def test_a_users_own_value_class_is_a_field() -> None:
    class Root(Config):
        share: Fraction = Fraction("1/2")

    assert to_plain(resolve(Root(share="1/3"))) == {"share": "1/3"}
    assert hash(resolve(Root())) == hash(resolve(Root(share="1/2")))


def read_pattern(value: object) -> re.Pattern[str]:
    return PatternType().read(value, Origin(PROGRAM))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (re.compile("a", re.IGNORECASE | re.DOTALL), "(?is)a"),
        (re.compile("(?m)a", re.IGNORECASE), "(?i)(?m)a"),
        (re.compile("a # b", re.VERBOSE), "(?x)a # b"),
        (re.compile("(?i)a"), "(?i)a"),
    ],
)
def test_flags_become_part_of_the_text(pattern: re.Pattern[str], text: str) -> None:
    assert read_pattern(pattern).pattern == text
    assert read_pattern(text).flags == pattern.flags


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a(b", "missing \\), unterminated subpattern at position 2"),
        ("[[a]", "Possible nested set"),
        ("a{99999999999}", "cannot be compiled|repetition"),
        ("(" * 499 + ")" * 499, None),
        ("null", "Write \\(\\?:null\\)"),
        ("\ud800", "not valid Unicode"),
        (re.compile(b"a"), "pattern of bytes"),
    ],
)
def test_texts_that_are_no_patterns_are_refused(value: Any, words: str | None) -> None:
    if words is None:
        try:
            read_pattern(value)  # the depth that Python can take is its own business
        except Invalid as error:
            assert error.message.startswith("is not a regular expression")
        return
    with pytest.raises(Invalid) as caught:
        read_pattern(value)
    assert re.search(words, f"{caught.value.message} {caught.value.hint}")


@example("${")
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        pattern = read_pattern(text)
    except Invalid:
        return
    assert read_pattern(unescaped(PatternType().dump(pattern))) == pattern
