"""Writing JSON: how it looks, and that every reader reads it back."""

import json
import math

from hypothesis import given

from setpoint.config.files.read import parse
from setpoint.config.files.write import write_json

from .strategies import DATA, canonical

WRITTEN = """\
{
  "name": "a \\"b\\"\\n\\u007f é",
  "seed": null,
  "model": {
    "moe": {},
    "on": true
  },
  "numbers": [1, 3.0, 1e-05, "inf", "-inf", "nan"],
  "grid": [
    [1, 2],
    [],
    {
      "a": 1
    }
  ],
  "words": [
    "a long word number 0",
    "a long word number 1",
    "a long word number 2",
    "a long word number 3",
    "a long word number 4"
  ]
}
"""


def test_layout():
    data = {
        "name": 'a "b"\n\x7f é',
        "seed": None,
        "model": {"moe": {}, "on": True},
        "numbers": [1, 3.0, 1e-05, math.inf, -math.inf, math.nan],
        "grid": [[1, 2], [], {"a": 1}],
        "words": ["a long word number " + str(i) for i in range(5)],
    }
    assert write_json(data, {("name",): "left out"}) == WRITTEN


def test_nothing():
    assert write_json({}) == "{}\n"


@given(DATA)
def test_every_reader_reads_it_back(data):
    text = write_json(data)
    assert canonical(json.loads(text)) == canonical(data, special=True)
    assert canonical(parse(text, "json", "f").data) == canonical(data, special=True)
    assert write_json(data) == text
