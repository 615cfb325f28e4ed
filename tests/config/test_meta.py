import pytest

from setpoint.config import Config, Problem, SetpointError, field, resolve, rule
from setpoint.config.draft.config import fields_of
from setpoint.config.types.compound import SectionType

from .sample import AdamW, ModelConfig, OptimizerConfig, Sgd, SourceConfig, Transformer


def test_fields_come_in_order_of_declaration_bases_first() -> None:
    assert list(fields_of(AdamW)) == ["lr", "clip_norm", "betas"]
    assert list(fields_of(Sgd())) == ["lr", "clip_norm", "momentum", "nesterov"]


def test_instances_take_no_other_attribute() -> None:
    with pytest.raises(SetpointError, match="momentun"):
        AdamW().momentun = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_a_family_knows_its_variants() -> None:
    assert OptimizerConfig.__setpoint__.variants == {"adamw": AdamW, "sgd": Sgd}
    assert set(SectionType((ModelConfig,)).variants()) == {"transformer", "recurrent"}


def test_tags_are_unique_within_a_family_only() -> None:
    class Adamw(SourceConfig, type="adamw"):
        pass

    try:
        assert SourceConfig.__setpoint__.variants["adamw"] is Adamw
        with pytest.raises(TypeError, match="SourceConfig already has a variant 'adamw'"):

            class Second(SourceConfig, type="adamw"):
                pass
    finally:
        del SourceConfig.__setpoint__.variants["adamw"]


def test_a_field_can_be_given_again_by_a_subclass() -> None:
    class Child(AdamW):
        lr: float = field(default=0.5, gt=0)

    assert list(fields_of(Child)) == ["lr", "clip_norm", "betas"]
    assert Child().lr == 0.5
    assert AdamW().lr == 3e-4


def test_checks_are_inherited_and_can_be_replaced() -> None:
    class Strict(Transformer):
        @rule
        def _check_dim(self) -> list[Problem]:
            return []

        @rule
        def _check_heads(self) -> list[Problem]:
            return []

    info = Strict.__setpoint__
    assert info.checks == ["_check_heads", "_check_dim"]
    assert resolve(Strict(heads=5, context=1)).head_dim == 38


def test_a_config_nested_in_its_owner_is_built_as_it() -> None:
    assert Component.Config.__setpoint__.owner == f"{__name__}:Component"
    assert Component.Config(size=3).build().size == 3


class Component:
    """A user's component with its configuration in one file."""

    class Config(Config):
        size: int = 1

    def __init__(self, config: "Component.Config") -> None:
        self.size = config.size


def test_annotations_of_classes_made_in_functions() -> None:
    class Inner(Config):
        x: int = 1

    class Outer(Config):
        inner: "Inner" = field(factory=Inner)

    assert resolve(Outer()).inner.x == 1
