"""Values given by tag, to all fields that carry it."""

from pathlib import Path

import pytest

from setpoint.config import Config, ConfigError, field
from setpoint.config.composition import compose

from ..support.snapshots import refused
from .helpers import LAYERS, resolve_through


class Optimizer(Config):
    lr: float = field(default=1e-3, gt=0, tags=("learning_rate",))


class Adam(Optimizer, type="adam"):
    eps: float = 1e-8


class Muon(Optimizer, type="muon"):
    matrix_lr: float = field(default=2e-2, gt=0, tags=("learning_rate", "matrix"))


class Head(Config):
    lr: float = field(default=1e-4, gt=0, le=1, tags=("learning_rate",))


class Root(Config):
    optimizer: Optimizer = field(factory=Adam)
    heads: tuple[Head, ...] = field(factory=lambda: (Head(), Head()))
    steps: int = 10


def rates(root: Root) -> list[float]:
    return [root.optimizer.lr, *(head.lr for head in root.heads)]


@pytest.mark.parametrize("layer", LAYERS)
def test_one_value_for_all(layer: str, tmp_path: Path) -> None:
    root = resolve_through(layer, {"tag.learning_rate": 0.5}, tmp_path, Root)
    assert isinstance(root, Root) and rates(root) == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("layer", ["toml", "yaml", "environment"])
def test_what_is_named_itself_beats_the_tag_in_a_layer_without_order(
    layer: str, tmp_path: Path
) -> None:
    values = {"optimizer.lr": 0.25, "tag.learning_rate": 0.5}
    for ordered in (values, dict(reversed(values.items()))):
        root = resolve_through(layer, ordered, tmp_path, Root)
        assert isinstance(root, Root) and rates(root) == [0.25, 0.5, 0.5]


def test_on_the_command_line_the_later_one_wins() -> None:
    named, tagged = "optimizer.lr=0.25", "tag.learning_rate=0.5"
    assert rates(compose(Root, flags=[tagged, named]).resolve()) == [0.25, 0.5, 0.5]
    assert rates(compose(Root, flags=[named, tagged]).resolve()) == [0.5, 0.5, 0.5]


def test_each_field_reads_the_value_by_its_own_type_and_range() -> None:
    for value in ("2", "x"):
        with refused(ConfigError):
            compose(Root, flags=[f"tag.learning_rate={value}"]).resolve()


@pytest.mark.parametrize("flag", ["tag.learning_rat=1", "tag.matrix=1", "tag=1", "tag.a.b=1"])
def test_wrong_tags_are_refused(flag: str) -> None:
    with refused(ConfigError):
        compose(Root, flags=[flag]).resolve()


def test_a_tag_by_the_name_of_a_field_that_carries_it() -> None:
    from setpoint.train.config import Job

    with refused(ConfigError):
        compose(Job, flags=["tag.lr=1"]).resolve()
