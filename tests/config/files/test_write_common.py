"""What may be written at all, and what the writers share."""

import enum
import math

import numpy
import pytest

from setpoint.config.files.write import checked, remark, write_json, write_toml, write_yaml
from setpoint.config.words.errors import SetpointError
from setpoint.config.words.plain_data import PlainScalar

WRITERS = (write_toml, write_yaml, write_json)


class Color(enum.StrEnum):
    RED = "red"


def nested(levels):
    data = {}
    for _ in range(levels - 1):
        data = {"a": data}
    return data


def test_subclasses_become_what_they_stand_for():
    data = checked(
        {Color.RED: Color.RED, "f": numpy.float64(0.5), "p": PlainScalar("1"), "t": (1, 2)}
    )
    assert repr(data) == "{'red': 'red', 'f': 0.5, 'p': '1', 't': [1, 2]}"


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": [{"b": {1}}]}, "a[0].b: a set cannot be written"),
        ({"a": {1: 2}}, "a: the key 1 is not text"),
        ({"a": "\ud800"}, "a: the text holds half a surrogate pair, which is not a character"),
        ({"\ud800": 1}, "the text holds half a surrogate pair, which is not a character"),
        ({"a": 10**4300}, "a: a number of more than 4300 digits cannot be written"),
        (nested(65), ".".join("a" * 64) + ": nested deeper than 64 levels"),
    ],
)
def test_refusals(write, data, message):
    with pytest.raises(SetpointError) as caught:
        write(data)
    assert str(caught.value) == message


def test_the_deepest_that_is_written_is_read():
    from setpoint.config.files.read import parse

    for format, write in zip(("toml", "yaml", "json"), WRITERS, strict=True):
        assert parse(write(nested(64)), format, "f").data == nested(64)


def test_remark():
    assert remark(["one\ntwo", "", " \x00\u2028", "three # four"]) == "  # one two; three # four"
    assert remark(["", "\n"]) == remark([]) == ""


def test_floats_keep_their_kind():
    text = write_toml({"a": 1e16, "b": -0.0, "c": 5e-324, "d": math.nan})
    assert text == "a = 1e+16\nb = -0.0\nc = 5e-324\nd = nan\n"
