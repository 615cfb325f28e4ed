"""Writing TOML: how it looks, and that every reader reads it back."""

import math
import tomllib

from hypothesis import given
from hypothesis import strategies as st

from setpoint.config.files.read import parse
from setpoint.config.files.write import write_toml

from .strategies import COMMENTS, DATA, canonical, paths

# What the standard library reads but its own reader of positions must find as well.
EXAMPLE = {
    "model": {"dim": 64, "rope base": 1e4, "moe": {}},
    "name": 'a "b"\n\x7f é',
    "seed": None,
    "betas": [0.9, 0.95],
    "lr": 1e-05,
    "limits": [math.inf, -math.inf],
    "grid": [[1, 2], [{"a": 1}, "x"]],
    "none": [],
    "a": {"b": {"c": True}, "d": {"e": 3.0}},
    "sources": [{"type": "stdlib"}, {"type": "text", "filter": {"min": 1}, "paths": ["x"]}],
    "words": ["a long word number " + str(i) for i in range(5)],
}

WRITTEN = """\
name = "a \\"b\\"\\n\\u007f é"  # the name; twice
seed = "null"
betas = [0.9, 0.95]  # second
lr = 1e-05
limits = [inf, -inf]
grid = [[1, 2], [{a = 1}, "x"]]  # inside
none = []
words = [  # many
    "a long word number 0",
    "a long word number 1",  # one
    "a long word number 2",
    "a long word number 3",
    "a long word number 4",
]

[model]  # section
dim = 64
"rope base" = 10000.0

[model.moe]

[a.b]
c = true

[a.d]
e = 3.0

[[sources]]  # list; first
type = "stdlib"

[[sources]]
type = "text"
paths = ["x"]

[sources.filter]
min = 1
"""

NOTES = {
    ("name",): "the name;\ntwice\x00",
    ("betas", 1): "second",
    ("grid", 1, 0, "a"): "inside",
    ("words",): "many",
    ("words", 1): "one",
    ("model",): "section",
    ("sources",): "list",
    ("sources", 0): "first",
    ("nowhere",): "left out",
}


def test_layout():
    assert write_toml(EXAMPLE, NOTES) == WRITTEN


def test_nothing():
    assert write_toml({}) == ""


@given(DATA, st.data())
def test_every_reader_reads_it_back(data, draw):
    known = list(paths(data))
    notes = draw.draw(st.dictionaries(st.sampled_from(known), COMMENTS)) if known else {}
    text = write_toml(data, notes)
    expected = canonical(data, null="null")
    assert canonical(tomllib.loads(text)) == expected
    document = parse(text, "toml", "f")
    assert canonical(document.data) == expected
    for path in known:
        assert document.locate(path) is not None
    assert write_toml(data, notes) == text
