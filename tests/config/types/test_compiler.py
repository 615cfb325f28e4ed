from typing import Annotated, Any, Optional, Union

import pytest

from setpoint.config import Config, Free, Period
from setpoint.config.types.compiler import compile_annotation
from setpoint.config.types.containers import AnyOfType, OptionalType
from setpoint.config.types.scalars import IntType, LiteralType, StrType
from setpoint.config.types.sections import SectionType
from setpoint.config.types.special import AnyType, FreeType, ScalarType

from ..sample import AdamW, Batch, Experts, Sgd


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (int, IntType),
        (Any, AnyType),
        (Annotated[int, "words"], IntType),
        (Optional[int], OptionalType),  # noqa: UP045
        (Union[int, str], AnyOfType),  # noqa: UP007
        (Period, ScalarType),
        (Free, FreeType),
        (Batch, SectionType),
        (AdamW | Sgd, SectionType),
        (AdamW | Sgd | None, OptionalType),
    ],
)
def test_annotations(annotation: Any, kind: type) -> None:
    assert type(compile_annotation(annotation, "here")) is kind


def test_the_narrower_alternative_is_asked_first() -> None:
    kind = compile_annotation(str | float | int, "here")
    assert isinstance(kind, AnyOfType)
    assert [type(option).__name__ for option in kind.options] == ["IntType", "FloatType", "StrType"]
    assert isinstance(kind.options[-1], StrType)
    assert LiteralType(("a",)).describe() == "one of: a"


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (set[int], "cannot be the type of a config's field"),
        (dict[int, str], "cannot be the type"),
        (complex, "cannot be the type"),
        (Batch | int, "sections and plain values cannot share one field"),
        (Batch | Experts, "Batch needs a type tag to be part of a union"),
        ([1], "cannot be the type"),
        (type("Other", (), {}), "cannot be the type"),
    ],
)
def test_what_no_field_can_have(annotation: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        compile_annotation(annotation, "module.Class.field")
    assert str(caught.value).startswith("module.Class.field: ")
    assert message in str(caught.value)


def test_a_name_that_is_not_there_at_run_time_is_explained() -> None:
    class Root(Config):
        x: "Nowhere"  # noqa: F821

    with pytest.raises(TypeError, match=r"Root\.x: the annotation 'Nowhere' names 'Nowhere'"):
        _ = Root.__setpoint__.fields["x"].type
