import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from setpoint.config import Config, Invalid, resolve
from setpoint.config.composition import compose
from setpoint.config.record.python_source import to_python
from setpoint.config.types.base import PatternType
from setpoint.config.values.origin import PROGRAM, Origin
from setpoint.config.words.plain_data import unescaped


class Selects(Config):
    names: re.Pattern[str] = re.compile("norm|bias")
    more: tuple[re.Pattern[str], ...] = ()
    other: re.Pattern[str] | None = None


def read(value: object) -> re.Pattern[str]:
    return PatternType().read(value, Origin(PROGRAM))


def test_fields() -> None:
    config = compose(Selects, flags=["--names=^a.*b$", "--more=[x+, y]", "--other=(?i)warm"])
    resolved = config.resolve()
    assert resolved.names.match("axxb")
    assert [pattern.pattern for pattern in resolved.more] == ["x+", "y"]
    assert resolved.other is not None
    assert resolved.other.match("WARMUP")
    assert resolve(Selects(names="a.*")).names == re.compile("a.*")
    assert 're.compile("a.*")' in to_python(resolve(Selects(names="a.*")))


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
    assert read(pattern).pattern == text
    assert read(text).flags == pattern.flags


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
def test_what_is_none(value: Any, words: str | None) -> None:
    if words is None:
        try:
            read(value)  # the depth that Python can take is its own business
        except Invalid as error:
            assert error.message.startswith("is not a regular expression")
        return
    with pytest.raises(Invalid) as caught:
        read(value)
    assert re.search(words, f"{caught.value.message} {caught.value.hint}")


@example("${")
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        pattern = read(text)
    except Invalid:
        return
    assert read(unescaped(PatternType().dump(pattern))) == pattern
