"""Writing: how each format looks, what is refused, and that every reader reads it back."""

import enum
import json
import math
import tomllib
from collections.abc import Callable

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from setpoint.config.files.read import parse
from setpoint.config.files.write import checked, remark, write_json, write_toml, write_yaml
from setpoint.config.words.plain_data import PlainScalar, guess

from ...support.snapshots import compare, refused
from .strategies import COMMENTS, DATA, canonical, paths

WRITERS = {"toml": write_toml, "yaml": write_yaml, "json": write_json}
EXAMPLE = {
    "model": {"dim": 64, "rope base": 1e4, "no": "no", "1": "1", "moe": {}},
    "name": 'a "b"\n\x7f é',
    "seed": None,
    "betas": [0.9, 0.95],
    "numbers": [1e16, 1e-05, 5e-324, -0.0, 3.0, math.inf, -math.inf, math.nan],
    "duration": "300 steps",
    "grid": [[1, 2], [{"a": 1, "b": 2}, "x"], []],
    "a": {"b": {"c": True}, "d": {"e": 3.0}},
    "sources": [{"type": "stdlib"}, {"type": "text", "filter": {"min": 1}, "paths": ["x/y.z"]}],
    "words": ["a long word number " + str(i) for i in range(5)],
    "k" * 1100: "long key",
}
NOTES = {
    ("name",): "the name;\ntwice\x00", ("betas", 1): "second", ("grid", 1, 0, "a"): "inside",
    ("words",): "many", ("words", 1): "one", ("model",): "section", ("sources",): "list",
    ("sources", 0): "first", ("nowhere",): "left out",
}  # fmt: skip


@pytest.mark.parametrize("format", WRITERS)
def test_the_layout_of_written_files(format):
    compare(f"config/written_{format}", WRITERS[format](EXAMPLE, NOTES))
    assert parse(WRITERS[format]({}), format, "f").data == {}


def guessed(value):
    if isinstance(value, dict):
        return {key: guessed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [guessed(item) for item in value]
    return guess(value) if isinstance(value, PlainScalar) else value


READERS: dict[str, Callable] = {
    "toml": tomllib.loads,
    "yaml": lambda text: YAML(typ="safe", pure=True).load(text),
    "json": json.loads,
}


@pytest.mark.parametrize("format", WRITERS)
def test_every_reader_reads_it_back(format):
    @given(DATA, st.data())
    def run(data, draw):
        known = list(paths(data))
        notes = draw.draw(st.dictionaries(st.sampled_from(known), COMMENTS)) if known else {}
        text = WRITERS[format](data, notes)
        null = "null" if format == "toml" else None
        expected = canonical(data, null=null, special=format == "json")
        assert canonical(READERS[format](text)) == expected
        document = parse(text, format, "f")
        assert canonical(guessed(document.data)) == expected
        for path in known:
            assert document.locate(path) is not None
        assert WRITERS[format](data, notes) == text

    run()


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


@pytest.mark.parametrize("format", WRITERS)
def test_what_cannot_be_written(format):
    for data in (
        {"a": [{"b": {1}}]}, {"a": {1: 2}}, {"\ud800": 1}, {"a": 10**4300}, nested(65),
    ):  # fmt: skip
        with refused():
            WRITERS[format](data)
    assert parse(WRITERS[format](nested(64)), format, "f").data == nested(64)


def test_a_comment_is_one_line():
    assert remark(["one\ntwo", "", " \x00\u2028", "three # four"]) == "  # one two; three # four"
    assert remark(["", "\n"]) == remark([]) == ""
