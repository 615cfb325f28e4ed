"""Sections that stand in several places."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import RUNTIME, Config, ConfigError, field, resolve
from setpoint.config.composition import compose
from setpoint.config.draft.config import build
from setpoint.config.draft.walk import leaves, shared, to_minimal, to_plain
from setpoint.config.record.python_source import to_python
from setpoint.config.record.record import (
    canonical,
    differences,
    fingerprint,
    read_record,
    record_files,
)

from ..support.snapshots import compare, refused
from .helpers import placeless, write_record


class Encoder(Config, owner=f"{__name__}:BuiltEncoder"):
    """What two towers may have in common."""

    layers: int = field(default=2, ge=1)
    dim: int = field(default=8, ge=1)


class BuiltEncoder:
    """What an encoder builds."""

    def __init__(self, config: Encoder) -> None:
        self.config = config


class Pooling(Config):
    """A family."""

    width: int = 1


class Mean(Pooling, type="mean"):
    """A variant."""


class Last(Pooling, type="last"):
    """Another one."""

    skip: int = 0


class Node(Config):
    """A section that may hold others of its kind."""

    left: Node | None = None
    right: Node | None = None


class Towers(Config, owner=f"{__name__}:build_towers"):
    """The root."""

    query: Encoder = field(factory=Encoder)
    key: Encoder = field(factory=Encoder)
    spare: Encoder | None = None
    watch: Encoder | None = field(default=None, role=RUNTIME)
    pool: Pooling = field(factory=Mean)
    other: Pooling | None = None
    mean: Mean | None = None
    steps: tuple[Encoder, ...] = ()
    named: dict[str, Encoder] = field(factory=dict)
    node: Node = field(factory=Node)
    sizes: tuple[int, ...] = ()


def build_towers(config: Towers) -> tuple[Any, Any]:
    """Both towers."""
    return config.query.build(), config.key.build()


def flags(*words: str) -> Towers:
    """The towers with flags."""
    return compose(Towers, flags=words).resolve()


def tied() -> Towers:
    """Towers with one encoder, as Python makes them."""
    encoder = Encoder(layers=4)
    return Towers(query=encoder, key=encoder)


def test_a_shared_section_is_one_object() -> None:
    for config in (resolve(tied()), flags("--query.layers=4", "--key", "${query}")):
        assert config.key is config.query
        for twin in (resolve(config.evolve()), pickle.loads(pickle.dumps(config)),
                     resolve(pickle.loads(pickle.dumps(config.evolve())))):  # fmt: skip
            assert twin.key is twin.query
            assert twin == config
        first, second = build(config, {})
        assert first is second


def test_what_is_written_and_read_back(tmp_path: Path) -> None:
    config = resolve(tied())
    assert to_plain(config)["key"] == "${query}"
    assert to_minimal(config) == {"query": {"layers": 4}, "key": "${query}"}
    assert compose(Towers, program=to_minimal(config)).resolve() == config
    write_record(config, tmp_path)
    draft, _ = read_record(Towers, str(tmp_path))
    assert draft.key is draft.query
    assert resolve(draft) == config
    text = to_python(config)
    compare("config/shared_python", text.replace(__name__, "towers"))
    compare("config/shared_toml", placeless(record_files(config)["config.toml"]))
    space: dict[str, Any] = {}
    exec(text.replace("@preset\n", ""), space)
    assert resolve(space["my_preset"]()) == config


def test_sharing_is_part_of_the_identity() -> None:
    one, two = resolve(tied()), resolve(Towers(query=Encoder(layers=4), key=Encoder(layers=4)))
    assert one != two
    assert fingerprint(one) != fingerprint(two)
    assert {d.path: d.left for d in differences(one, two)}["key"] == "${query}"
    assert {leaf.key: leaf.value for leaf in leaves(one)}["key"] == "${query}"
    assert list(shared(flags("--key=${query}"))) == ["key is query, from command line --key"]


def test_values_count_if_one_place_counts() -> None:
    """A section that is watched at run time and learned in another place is learned."""

    class Root(Config):
        watch: Encoder | None = field(default=None, role=RUNTIME)
        learned: Encoder = field(factory=Encoder)

    texts = []
    for layers in (3, 4):
        encoder = Encoder(layers=layers)
        texts.append(canonical(resolve(Root(watch=encoder, learned=encoder))))
    assert texts[0] != texts[1]
    assert texts[0] == '{"learned":"${watch}","watch.dim":8,"watch.layers":3}'
    assert "layers" in canonical(resolve(Root(watch=Encoder())))  # learned.layers


@pytest.mark.parametrize("words", [
    ["--key=${query}", "--query.layers=5"], ["--key=${query}", "--key.layers=5"],
    ["--query=${key}", "--query.layers=5"], ["--query.layers=5", "--key=${query}"],
])  # fmt: skip
def test_a_field_set_through_one_place_is_set_in_both(words: list[str]) -> None:
    config = flags(*words)
    assert config.query is config.key
    assert config.query.layers == 5


def test_one_file_may_not_say_two_things(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('key = "${query}"\n')
    (tmp_path / "exp.toml").write_text(
        'extends = "base.toml"\n[query]\nlayers = 3\n[key]\nlayers = 4\ndim = 9\n'
    )
    with refused(ConfigError):
        compose(Towers, str(tmp_path / "exp.toml")).resolve()


def test_items_of_lists_and_mappings_can_be_shared() -> None:
    config = flags("--steps", "[{layers: 3}, ${steps.0}, ${query}]", "--named", "{a b: ${steps.1}}")
    assert config.steps[0] is config.steps[1] is config.named["a b"]
    assert config.steps[2] is config.query
    assert to_plain(config)["named"] == {"a b": "${steps.0}"}
    config = flags("--named", "{a b: {layers: 3}}", "--spare", "${named['a b']}")
    assert config.spare is not None
    assert to_plain(config)["named"] == {"a b": "${spare}"}
    config = flags("--steps", "[{layers: 3}]", "--steps.append", "${steps.0}", "--steps.1.dim=5")
    assert config.steps[0].dim == 5
    config = flags("--steps", "[{layers: 3}, ${steps.0}]", "--steps.1", "{layers: 9}")
    assert config.steps[0].layers == 9


def test_another_variant_stands_in_both_places() -> None:
    config = flags("--other=${pool}", "--pool.width=3", "--other=last", "--other.skip=2")
    assert config.pool is config.other
    assert (type(config.pool), config.pool.width) == (Last, 3)
    with refused(ConfigError):
        flags("--mean=${pool}", "--pool=last")


def test_null_in_one_place_leaves_the_other() -> None:
    config = flags("--query.layers=4", "--spare=${query}", "--spare=null")
    assert config.spare is None
    assert config.query.layers == 4
    config = flags("--spare={layers: 4}", "--watch=${spare}", "--spare=null")
    assert config.spare is None
    assert config.watch is not None and config.watch.layers == 4
    # Taken apart, the second has a section of its own.
    config = flags("--spare=${query}", "--spare=null", "--spare.layers=6")
    assert (config.query.layers, config.spare.layers if config.spare else 0) == (2, 6)


def test_references_that_no_place_can_take() -> None:
    for words in (
        ["--key=${pool}", "--spare=${nothing}", "--watch=${spare}", "--sizes=[1, ${query}]",
         "--node.left=${node}", "--pool=${other}", "--other=${pool}", "--mean=${pool.width}",
         "--steps=[${query}, ${sizes}]"],
        ["--key=${pool}", "--mean=${query.dim}", "--steps=[${query}, ${sizes}]"],
        ["--spare=${watch}", "--spare.layers=3"],
    ):  # fmt: skip
        with refused(ConfigError):
            flags(*words)


def test_a_section_that_is_switched_on_later() -> None:
    config = flags("--spare=${watch}", "--watch.layers=3")
    assert config.spare is config.watch is not None
    assert flags("--spare=${watch}").spare is None


def test_a_wrong_value_is_reported_once_where_it_was_given() -> None:
    with refused(ConfigError):
        flags("--key=${query}", "--key.layers=0")


def test_a_section_that_contains_itself() -> None:
    draft = Towers()
    draft.node.left = draft.node
    with refused():
        resolve(draft)


def test_references_follow_an_item_that_is_replaced() -> None:
    """Whichever layer comes first, a reference leads to the item that the last layer gives."""

    class Part(Config):
        size: int = 1

    class Root(Config):
        named: dict[str, Part] = field(factory=dict)
        parts: tuple[Part, ...] = field(factory=lambda: (Part(size=4),))
        one: Part = field(factory=Part)

    def sizes(*flags: str) -> list[int]:
        config = compose(Root, flags=flags).resolve()
        assert config.one is config.parts[0] is config.named["a"]
        return [part.size for part in config.parts]

    refer, replace = ("named={a: '${parts.0}'}", "one=${parts.0}"), "parts=[{size: 9}, {size: 3}]"
    assert sizes(*refer, replace) == sizes(replace, *refer) == [9, 3]
    assert sizes(*refer, replace, "one.size=5") == [5, 3]
    named = compose(
        Root, flags=["named={a: {}, b: '${named.a}'}", "named={a: {size: 7}}"]
    ).resolve()
    assert named.named["b"].size == 7
