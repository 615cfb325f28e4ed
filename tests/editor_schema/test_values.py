"""The JSON Schema takes the values that Setpoint takes."""

import enum
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from setpoint.config import Config, Free, Secret, field
from setpoint.config.values.scalar import ImportPath
from setpoint.units import Duration, Period
from setpoint.units.dtype import DType
from setpoint.units.size import ByteSize

from .helpers import complaints, findings, validator


class Colour(enum.Enum):
    RED = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Leaf(Config):
    size: int = field(default=1, ge=1)


class Root(Config):
    an_int: int = field(default=1, gt=0, lt=10)
    a_float: float = field(default=1.0, ge=0, le=2)
    free_float: float = 1.0
    a_bool: bool = True
    a_text: str = "a"
    a_pattern: str = field(default="a", pattern="[a-z]+")
    a_path: Path = Path("a")
    a_word: Literal["a", "b", 3] = "a"
    a_colour: Colour = Colour.RED
    access: Access = Access.READ
    maybe: int | None = field(default=None, ge=2)
    several: int | Literal["auto"] = "auto"
    numbers: tuple[int, ...] = field(default=(), item_ge=1)
    pair: tuple[int, str] = (1, "a")
    words: list[str] = field(factory=list)
    by_name: dict[str, float] = field(factory=dict, item_gt=0)
    leaf: Leaf = field(factory=Leaf)
    no_leaf: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    anything: Any = None
    area: Free = field(factory=Free)
    period: Period = field(default=Period("never"))
    duration: Duration = field(default=Duration("1 h"))
    secret: Secret | None = None
    size: ByteSize = field(default=ByteSize("1 MiB"))
    dtype: DType = field(default=DType("bf16"))
    expression: re.Pattern[str] = field(default=re.compile("a"))
    function: Callable[..., Any] | None = None
    path: ImportPath | None = None


KNOWN = validator(Root)
GOOD: list[tuple[str, Any]] = [
    *(("an_int", value) for value in (1, 9, "${size // 2}", " ${size} ")),
    *(("a_float", value) for value in (0, 2, 0.5)),
    *(("free_float", value) for value in (-1e308, "inf", "-inf")),
    ("a_bool", False),
    *(("a_text", value) for value in ("", "b", "null", "${a_pattern}")),
    ("a_pattern", "abc"),
    *(("a_path", value) for value in ("a/b", "..", "null", " ")),
    *(("a_word", value) for value in ("b", 3)),
    ("a_colour", "RED"),
    *(("access", value) for value in ("WRITE", "READ|WRITE", "READ | WRITE", "0")),
    *(("maybe", value) for value in (2, None, "null")),
    *(("several", value) for value in ("auto", 3)),
    *(("numbers", value) for value in ([], [1, 2], {"append": 3}, {"extend": [3]})),
    *(("pair", value) for value in ([1, "a"], {"0": 2}, {"1": "c"})),
    *(("words", value) for value in (["a"], {"append": "a"}, {"insert": {"0": "b"}})),
    *(("by_name", value) for value in ({"a": 1}, {"": 0.5})),
    *(("leaf", value) for value in ({}, {"size": 3})),
    *(("no_leaf", value) for value in ({}, {"size": 3}, None, "null")),
    *(("leaves", value) for value in ([{}], {"append": {"size": 2}})),
    *(("anything", value) for value in (1, "a", [1], {"a": 1}, None)),
    *(("area", value) for value in ({"a": 1}, {"a": {"b": [1]}}, {})),
    *(("period", value) for value in (3, "3 steps", "0.5 epochs", "1e9 tokens", "never", "10min")),
    *(("duration", value) for value in (3, "1_000 steps", ["1 h", 3], "[1 h, 3]", ".5 h")),
    *(("secret", value) for value in ("env:A", "file:/a b", None)),
    *(("size", value) for value in (0, "16 MiB", "2GB", "1.5 kB", "7", "1 b")),
    *(("dtype", value) for value in ("bfloat16", "BF16", "torch.float32", "float8-e4m3fn", "half")),
    *(("expression", value) for value in ("(?i)a", "[a-z]+")),
    *(("function", value) for value in ("math.sqrt", None)),
    ("path", "math:sqrt"),
]
BAD: list[tuple[str, Any]] = [
    *(("an_int", value) for value in (0, 10, 1.5, "1", True, None, [1], {"a": 1}, "x ${size}")),
    *(("a_float", value) for value in (-0.1, 2.1, "inf", "0.5", True, None)),
    *(("free_float", value) for value in ("infinity", "nan", [])),
    *(("a_bool", value) for value in (0, "true", None)),
    *(("a_text", value) for value in (1, None, True, ["a"])),
    *(("a_pattern", value) for value in ("A", "", "a1")),
    *(("a_path", value) for value in ("", 3, None)),
    *(("a_word", value) for value in ("c", 4, "3", None)),
    *(("a_colour", value) for value in ("red", "BLUE", 1)),
    *(("access", value) for value in ("READ|", "RUN", "0|READ", 1)),
    *(("maybe", value) for value in (1, "auto", 2.5)),
    *(("several", value) for value in ("never", 2.5, None)),
    *(("numbers", value) for value in ([0], ["1"], 1, {"append": "x"}, {"extend": 3})),
    *(("pair", value) for value in ([1], [1, 2], [1, "a", 2], {"0": "a"}, {"2": 1})),
    *(("words", value) for value in ("a", [1], {"insert": {"x": "b"}})),
    *(("by_name", value) for value in ({"a": 0}, {"a": "b"}, [1])),
    *(("leaf", value) for value in ({"sise": 3}, {"size": 0}, 3, None, "leaf", [])),
    *(("no_leaf", value) for value in ({"size": 0}, 3)),
    *(("leaves", value) for value in ([{"size": 0}], [3], {"append": {"size": 0}})),
    *(("area", value) for value in ({"_a": 1}, {"a": {"b.c": 1}}, 3, None)),
    *(("period", value) for value in (0, "3 stpes", "often", 1.5, None, ["1 h"])),
    *(("duration", value) for value in (0, "1 stpes", [], ["never"], "never", None)),
    *(("secret", value) for value in ("s3cret", "env:", 3, "${a_text}")),
    *(("size", value) for value in (-1, "1 Mb", "big", 1.5, None)),
    *(("dtype", value) for value in ("bfloat17", 16, None)),
    *(("expression", value) for value in (3, None)),
    *(("function", value) for value in (3, ["a"])),
]


@pytest.mark.parametrize(("name", "value"), GOOD, ids=str)
def test_valid_values_pass_both(name: str, value: Any) -> None:
    assert findings(Root, json.dumps({name: value})) == []
    assert complaints(KNOWN, {name: value}) == []


@pytest.mark.parametrize(("name", "value"), BAD, ids=str)
def test_invalid_values_are_refused_by_both(name: str, value: Any) -> None:
    assert findings(Root, json.dumps({name: value}))
    assert len(complaints(KNOWN, {name: value})) == 1
