"""Drafts and configs in Python: attributes, errors, `evolve` and `build`."""

from setpoint.config import Config, ConfigError, field, resolve
from setpoint.config.draft.config import building
from setpoint.config.values.node import is_frozen
from setpoint.config.words.errors import UnresolvedError

from ..support.snapshots import refused
from .sample import Batch, Job, Text, Tracker, Transformer


def test_an_assignment_is_checked_at_once() -> None:
    job = Job()
    for name, value in (("seed", 7.9), ("compute", "fp23"), ("deterministic", 1), ("seed", -1)):
        with refused(ConfigError):
            setattr(job, name, value)
    assert job == Job()


def test_a_constructor_reports_everything_at_once() -> None:
    with refused(ConfigError):
        Transformer(dim=0, head=4, dropout="no")


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with refused(AttributeError):
        _ = Transformer().head
    assert not hasattr(Transformer(), "__len__")


def test_a_value_without_default_cannot_be_read_before_it_is_known() -> None:
    with refused(UnresolvedError):
        _ = Transformer().head_dim
    with refused(UnresolvedError):
        _ = Text().paths


def test_a_field_cannot_be_deleted() -> None:
    with refused():
        del Job().seed


def test_evolve_leaves_the_original_and_derives_anew() -> None:
    config = resolve(Job(model=Transformer(dim=64, heads=4)))
    draft = config.evolve(seed=5)
    draft.model.heads = 8
    changed = resolve(draft)
    assert (config.seed, config.model.head_dim) == (1234, 16)
    assert (changed.seed, changed.model.head_dim) == (5, 8)
    assert not is_frozen(draft)
    with refused(ConfigError):
        config.evolve(seed=-5, lr=3)


def test_a_frozen_section_in_a_draft_says_how_to_change_it() -> None:
    config = resolve(Job())
    draft = Job(model=config.model)
    with refused():
        draft.model.dim = 3
    assert resolve(draft).model == config.model


def test_repr_shows_what_was_set() -> None:
    assert repr(Job(seed=3, batch=Batch(size=4))) == "Job(seed=3, batch=Batch(size=4))"
    assert "hunter2" not in repr(Tracker(token="env:TOKEN"))
    assert "seed" in dir(Job())


class Part(Config, owner=f"{__name__}:BuiltPart"):
    size: int = 1


class Whole(Config):
    first: Part = field(factory=Part)
    second: Part = field(factory=Part)


class BuiltPart:
    def __init__(self, config: Part, scale: object = None) -> None:
        self.size = config.size
        self.scale = scale


def test_a_config_without_owner() -> None:
    with refused():
        Batch().build()


def test_a_package_that_is_not_installed() -> None:
    class Lost(Config, owner="tests.config.needs_package:Thing"):
        pass

    with refused():
        Lost().build()


def test_one_object_within_a_block() -> None:
    part = Part()
    pair = resolve(Whole(first=part, second=part))
    assert pair.first is pair.second
    assert pair.first.build() is not pair.second.build()
    with building():
        with building():
            one = pair.first.build()
        assert one is pair.second.build()
        with refused():
            pair.second.build(scale=1)
    assert pair.first.build() is not one
