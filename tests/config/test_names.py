"""Hints for misspelt names, and for values that are written as other systems write them."""

from functools import partial
from typing import Literal

import pytest

from setpoint.config import Config, ConfigError, field
from setpoint.config.composition import compose
from setpoint.config.draft.hints import is_secret_key, location_hint
from setpoint.config.schema.class_info import all_fields, holds_secret
from setpoint.config.words.names import nearest

from ..support.snapshots import refused
from .helpers import problems_of
from .sample import Job


@pytest.mark.parametrize(
    ("name", "names", "found"),
    [
        ("lerning-rate", ["learning_rate", "warmup", "weight_decay"], ["learning_rate"]),
        ("decay", ["learning_rate", "weight_decay"], ["weight_decay"]),
        ("WARMUP", ["warmup"], ["warmup"]),
        ("x", ["warmup"], []),
        ("", ["warmup"], []),
        # Only whole words of what was typed are taken for names.
        ("dataloader_num_workers", ["data", "model"], []),
        ("data_dir", ["data", "model"], ["data"]),
        ("total_steps", ["eps"], []),
    ],
)
def test_the_nearest_name_is_found(name: str, names: list[str], found: list[str]) -> None:
    assert nearest(name, names) == found


class Node(Config):
    pass


class Pair(Node, type="pair"):
    left: Node | None = None
    right: Node | None = None


class Triple(Node, type="triple"):
    nodes: tuple[Node, ...] = ()
    weight: float = 1.0


def test_a_family_that_contains_itself_has_an_end() -> None:
    paths = [path for path, _ in all_fields(Pair)]
    assert "left.right" in paths
    assert "left.nodes.left" in paths
    assert len(paths) < 100
    hint = "Did you mean left.weight? It is a field of type = triple."
    assert location_hint(Pair, "left.wieght") == hint


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("lr", "Did you mean optimizer.lr?"),
        ("sedd", "Did you mean seed?"),
        ("optimizer.rl", "Did you mean optimizer.lr?"),
        (
            "sources.0.documnts",
            "Did you mean sources.0.documents? It is a field of type = synthetic.",
        ),
        ("optimizer.momentum", "It is a field of type = sgd."),
        ("sources.3.paths", "It is a field of type = text."),
        ("optimizer.lrr", "Did you mean optimizer.lr?"),  # as all variants have it
        ("strange.cell", "Did you mean model.cell?"),
        ("batch.lrr", ""),  # misspelt, and in another section
        ("zzzzzz", ""),
    ],
)
def test_where_a_key_belongs(path: str, hint: str) -> None:
    assert location_hint(Job, path) == hint


def test_names_that_sound_secret_are_known() -> None:
    assert is_secret_key(Job, "token")
    assert is_secret_key(Job, "tokn") and is_secret_key(Job, "hf_token")
    for name in ("tokens", "max_token", "max_tokens", "token_ids", "pad_token", "tokenizer"):
        assert not is_secret_key(Job, name), name
    assert is_secret_key(Job, "wandb_api_key") and is_secret_key(Job, "dbPassword")
    assert not is_secret_key(Job, "lr")
    assert not is_secret_key(Job, "hidden")  # a letter or two in common with a name are no likeness
    assert holds_secret(Job.__setpoint__.fields["tracker"].type)
    assert not holds_secret(Job.__setpoint__.fields["model"].type)


def test_what_is_suggested_exists() -> None:
    from setpoint.train.config import Job as Training

    def _resolve(flag: str) -> None:
        compose(Training, flags=[flag]).resolve()

    every = {path for path, _ in all_fields(Training)}
    for flag, hint in {
        "train.seed=3": "Setpoint calls it seed: --seed 3",
        "training.precision=16": "Did you mean precision?",
        "trainer.foo=3": "",
        "dataloader_num_corkers=2": "Did you mean data.loader.workers?",
        "no-evaluation=true": "Set evaluation to null.",
        "optimiser.lr=1": "Did you mean optimizer.lr?",
        "data.source.0.seed=1": "Did you mean data.sources.0.seed?",
    }.items():
        (problem,) = problems_of(partial(_resolve, flag))
        assert problem.hint == hint, flag
        for word in hint.replace("?", "").replace(".0.", ".").split():
            assert "." not in word.strip(".") or word.strip(".") in every, flag


class Kind(Config):
    pass


class Plain(Kind, type="plain"):
    pass


class Fancy(Kind, type="fancy"):
    pass


class Format(Config):
    compute: Literal["fp32", "fp16"] = "fp32"


class PairSpelling(Config):
    left: int = 1
    mode: Literal["a", "b"] = "a"


class Experts(Config):
    count: int = field(ge=1)
    chosen: int = 2


class Root(Config, other_names=__name__):
    seed: int | None = 1
    count: int = 1
    format: Format = field(factory=Format)
    pair: PairSpelling | None = field(factory=PairSpelling)
    experts: Experts | None = None
    kind: Kind = field(factory=Plain)
    names: tuple[str, ...] = ()


OTHER_VALUES = {"format.compute": {"fp16": ("half", "16")}, "kind": {"plain": ("none",)}}


@pytest.mark.parametrize(
    "flag",
    [
        "format.compute=half", "format=fp32", "pair=b", "experts=8", "experts=0", "pair=None",
        "pair=false", "seed=None", "count=null", "kind=none", "count=[1,2]", "count=1,x",
    ],
)  # fmt: skip
def test_a_hint_says_what_was_meant(flag: str) -> None:
    with refused(ConfigError):
        compose(Root, flags=[flag]).resolve()
    assert compose(Root, flags=["names=null"]).resolve().names == ("null",)
