"""Writing YAML: how it looks, and that every reader reads it back."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from setpoint.config.files.read import parse
from setpoint.config.files.write import write_yaml
from setpoint.config.words.plain_data import PlainScalar, guess

from .strategies import COMMENTS, DATA, canonical, paths

EXAMPLE = {
    "name": 'a "b"\n é',
    "seed": None,
    "model": {"type": "transformer", "moe": {}, "no": "no", "1": "1", "dim": 64},
    "betas": [0.9, 0.95, 1e-05, math.inf, -math.inf, 3.0],
    "duration": "300 steps",
    "grid": [[1, 2], [{"a": 1, "b": 2}, "x"], []],
    "sources": [{"type": "stdlib"}, {"type": "text", "filter": {"min": 1}, "paths": ["x/y.z"]}],
    "words": ["a long word number " + str(i) for i in range(5)],
    "k" * 1100: "long key",
}

WRITTEN = f"""\
name: "a \\"b\\"\\n é"  # the name
seed: null
model:  # section
  type: transformer
  moe: {{}}
  "no": "no"
  "1": "1"
  dim: 64
betas: [0.9, 0.95, 1e-05, .inf, -.inf, 3.0]  # second
duration: "300 steps"
grid:
  - [1, 2]
  -
    - a: 1  # inside
      b: 2
    - x
  - []
sources:  # list
  -  # first
    type: stdlib
  - type: text
    filter:
      min: 1
    paths: [x/y.z]
words:  # many
  - a long word number 0
  - a long word number 1  # one
  - a long word number 2
  - a long word number 3
  - a long word number 4
? {"k" * 1100}
: long key
"""

NOTES = {
    ("name",): "the name",
    ("model",): "section",
    ("betas", 1): "second",
    ("grid", 1, 0, "a"): "inside",
    ("sources",): "list",
    ("sources", 0): "first",
    ("words",): "many",
    ("words", 1): "one",
}


def guessed(value):
    if isinstance(value, dict):
        return {key: guessed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [guessed(item) for item in value]
    return guess(value) if isinstance(value, PlainScalar) else value


def independent(text):
    return YAML(typ="safe", pure=True).load(text)


def test_layout():
    assert write_yaml(EXAMPLE, NOTES) == WRITTEN


def test_nothing():
    assert write_yaml({}) == "{}\n"


@settings(max_examples=80)
@given(DATA, st.data())
def test_every_reader_reads_it_back(data, draw):
    known = list(paths(data))
    notes = draw.draw(st.dictionaries(st.sampled_from(known), COMMENTS)) if known else {}
    text = write_yaml(data, notes)
    assert canonical(independent(text)) == canonical(data)
    document = parse(text, "yaml", "f")
    assert canonical(guessed(document.data)) == canonical(data)
    for path in known:
        assert document.locate(path) is not None
    assert write_yaml(data, notes) == text
