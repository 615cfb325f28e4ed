"""Containers of anything inside containers of anything, through every layer and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from setpoint.config import Config, ImportPath, Secret, field, resolve
from setpoint.config.composition import compose
from setpoint.config.draft.walk import to_plain
from setpoint.units import ByteSize, DType, Duration, Period

from ..components.targets import Part, double


class Leaf(Config):
    count: int = 1


class Family(Config):
    pass


class One(Family, type="one"):
    rate: float = 1.0


class Two(Family, type="two"):
    inner: Family | None = None
    many: tuple[Family | None, ...] = ()


class Speed(Enum):
    FAST = 1
    SLOW = 2


class Root(Config):
    lists_of_sections: dict[str, list[Leaf | None]] = field(factory=dict)
    lists_of_lists: list[list[Family]] = field(factory=list)
    pairs: tuple[tuple[int, str], ...] = ()
    tables: dict[str, dict[str, float]] = field(factory=dict)
    pair: tuple[Leaf, One | Two] | None = None
    words: list[Speed | None] = field(factory=list)
    mixed: tuple[int | Literal["auto"], ...] = ()
    sizes: dict[str, tuple[ByteSize | None, ...]] = field(factory=dict)
    formats: list[DType] = field(factory=list)
    patterns: dict[str, list[re.Pattern[str]]] = field(factory=dict)
    functions: list[Callable[..., Any]] = field(factory=list)
    classes: dict[str, type[Part]] = field(factory=dict)
    path: ImportPath | None = None
    variants: dict[str, Family] = field(factory=dict)
    cubes: list[list[list[int]]] = field(factory=list)
    optional: Family | None = None
    files: list[dict[str, Path]] = field(factory=list)
    times: tuple[Period | None, ...] = ()
    ends: dict[str, Duration] = field(factory=dict)
    secrets: dict[str, list[Secret]] = field(factory=dict)


def everything() -> Root:
    return resolve(
        Root(
            lists_of_sections={"x": [Leaf(count=3), None]},
            lists_of_lists=[[One(rate=2.0), Two(inner=One())], []],
            pairs=((1, "a"), (2, "null")),
            tables={"p": {"q": 1e-3}},
            pair=(Leaf(count=5), Two(many=(One(), None, Two(inner=Two())))),
            words=[Speed.FAST, None],
            mixed=(1, "auto"),
            sizes={"z": (ByteSize("1 MiB"), None)},
            formats=[DType("bf16"), DType("fp32")],
            patterns={"a": [re.compile("x+"), re.compile("y", re.IGNORECASE)]},
            functions=[double, Part],
            classes={"a": Part},
            path=ImportPath("a.b"),
            variants={"u": Two(inner=Two(inner=One(rate=9.0)))},
            cubes=[[[1], []], []],
            optional=Two(many=(One(),)),
            files=[{"a": Path("b/c")}],
            times=(Period("3 steps"), None),
            ends={"a": Duration("2 epochs", "30 min")},
            secrets={"a": [Secret("env:A"), Secret("file:/b")]},
        )
    )


def test_flags_the_environment_and_programs_give_it_back() -> None:
    config = everything()
    plain = to_plain(config)
    texts = {name: json.dumps(value) for name, value in plain.items() if name != "path"}
    flags = [f"--{name}={text}" for name, text in texts.items()]
    environ = {f"SETPOINT__{name.upper()}": text for name, text in texts.items()}
    assert compose(Root, flags=[*flags, "--path=a.b"]).resolve() == config
    assert compose(Root, environ={**environ, "SETPOINT__PATH": "a.b"}).resolve() == config
    assert compose(Root, program=plain).resolve() == config


def test_flags_reach_what_lies_deep_inside() -> None:
    flags = [
        "--lists_of_lists.0.0.rate=7",
        "--pair.1.many.2.inner.inner={type: one}",
        "--variants.u.inner.inner.rate=3",
        "--lists_of_sections.x.0.count=9",
        "--cubes.0.0.0=4",
        "--sizes.z.0=2 GB",
        "--formats.1=fp8_e5m2",
        "--patterns.a.0=z",
    ]
    config: Any = compose(Root, everything(), flags=flags).resolve()
    assert config.lists_of_lists[0][0].rate == 7.0
    assert config.pair[1].many[2].inner.inner == One()
    assert config.variants["u"].inner.inner.rate == 3.0
    assert config.lists_of_sections["x"][0].count == 9
    assert config.cubes == [[[4], []], []]
    assert config.sizes["z"][0] == 2 * 10**9
    assert config.formats[1].name == "float8_e5m2"
    assert config.patterns["a"][0].pattern == "z"
