import pytest

from setpoint.config import Config, ConfigError, Invalid
from setpoint.config.types.compound import SectionType
from setpoint.config.values.origin import PROGRAM, Origin
from setpoint.config.words.plain_data import PlainScalar

from ..sample import AdamW, Batch, ModelConfig, OptimizerConfig, Recurrent, Sgd, Transformer

ORIGIN = Origin(PROGRAM)
FAMILY = SectionType((OptimizerConfig,))
UNION = SectionType((AdamW, Recurrent))
FIXED = SectionType((Batch,))


def test_what_is_taken() -> None:
    section = Sgd()
    assert FAMILY.read(section, ORIGIN) is section
    for value in ("sgd", PlainScalar("sgd"), {"type": "sgd"}, PlainScalar("{type: sgd}")):
        assert FAMILY.read(value, ORIGIN) == Sgd()
    assert UNION.read({"type": "recurrent", "dim": 3}, ORIGIN) == Recurrent(dim=3)
    assert FIXED.read({"sequence-length": 3}, ORIGIN) == Batch(sequence_length=3)
    assert FIXED.read({}, ORIGIN) == Batch()
    assert SectionType((AdamW,)).read({"lr": 1}, ORIGIN) == AdamW(lr=1.0)


@pytest.mark.parametrize(
    ("kind", "value", "at", "message"),
    [
        (FAMILY, {}, ("type",), "needs a type"),
        (FAMILY, {"type": "sdg"}, ("type",), "is not one of the valid values: got 'sdg'"),
        (FAMILY, {"type": 3}, ("type",), "is not one of the valid values: got 3"),
        (FAMILY, 3, (), "is not a section with type = adamw or sgd: got 3"),
        (FAMILY, None, (), "is not a section with type = adamw or sgd: got null"),
        (FAMILY, Batch(), (), "is not a section"),
        (FAMILY, OptimizerConfig(), (), "OptimizerConfig is a family; choose one of its variants"),
        (FAMILY, {"type": "sgd", "lr": -1, "momentun": 1}, ("lr",), "is out of range"),
        (FIXED, {"type": "x"}, ("type",), "Batch has no variants, so no type can be chosen"),
        (FIXED, "x", (), "is not a section (Batch): got 'x'"),
        (FIXED, PlainScalar("x"), (), "is not a section (Batch): got x"),
        (FIXED, [1], (), "is not a section (Batch): got [1]"),
        (UNION, Sgd(), (), "is not a section with type = adamw or recurrent"),
    ],
)
def test_what_is_refused(kind: SectionType, value: object, at: object, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        kind.read(value, ORIGIN)
    assert caught.value.parts[0].at == at
    assert message in str(caught.value.parts[0])


def test_words() -> None:
    assert (
        SectionType((ModelConfig,)).describe() == "a section with type = transformer or recurrent"
    )
    assert FIXED.describe() == "a section (Batch)"
    assert FIXED.only() is Batch
    assert FAMILY.only() is None
    assert SectionType((Transformer,)).only() is Transformer


def test_variants_made_later_are_found() -> None:
    class Late(OptimizerConfig, type="late"):
        pass

    try:
        assert FAMILY.read("late", ORIGIN) == Late()
    finally:
        del OptimizerConfig.__setpoint__.variants["late"]


def test_python_names_every_problem_inside() -> None:
    class Root(Config):
        optimizer: OptimizerConfig

    with pytest.raises(ConfigError) as caught:
        Root(optimizer={"type": "sgd", "lr": -1, "momentun": 1})
    assert [problem.path for problem in caught.value.problems] == [
        "Root.optimizer.lr",
        "Root.optimizer.momentun",
    ]
