"""Fields made from the signature of a callable."""

import inspect
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, Optional, Protocol, TypeVar, Union

import pytest
import torch

from setpoint.config import ImportPath, Invalid
from setpoint.config.component_sections import (
    ImportedName,
    Partial,
    converted_argument,
    kind_of,
    read_argument,
    wrong_arguments,
)
from setpoint.config.values.origin import PROGRAM, Origin
from setpoint.config.words.plain_data import PlainScalar, listed
from setpoint.units import DType

from ...support.snapshots import refused
from . import targets
from .targets import Part

T = TypeVar("T")


class Speed(Enum):
    FAST = 1


class Sized(Protocol):
    size: int


def read(annotation: Any, value: object, default: Any = inspect.Parameter.empty) -> Any:
    parameter = inspect.Parameter(
        "x", inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )
    return converted_argument(parameter, read_argument(value, Origin(PROGRAM)))


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Annotated[float | torch.Tensor, "rate"], 1, 1.0),
        (Union[float, torch.Tensor, None], None, None),  # noqa: UP007 - as torch writes it
        (Optional[int], 3, 3),  # noqa: UP045
        (tuple[float, float], [1, 2], (1.0, 2.0)),
        (tuple[float | torch.Tensor, float | torch.Tensor], [1, 2], (1.0, 2.0)),
        (list[int], [1, 2], [1, 2]),
        (Sequence[float], [1, 2], [1.0, 2.0]),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Literal["a", "b"], "a", "a"),
        (Speed, "FAST", Speed.FAST),
        (torch.dtype, "bf16", DType("bfloat16")),
        (Callable[[int], int], "a.b", ImportPath("a.b")),
        (type[Part], "a.b", ImportPath("a.b")),
        (Sized, 3, 3),
        (T, {"a": 3}, {"a": 3}),
        (inspect.Parameter.empty, [1], [1]),
        ("a text that names nothing", [1], [1]),
    ],
)
def test_values_are_read_by_the_annotation(annotation: Any, value: object, expected: Any) -> None:
    assert read(annotation, value) == expected


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (float | torch.Tensor, "fast"), (torch.Tensor, 3), (tuple[float, float], [1]),
        (tuple[float, float], 3), (Literal["a", "b"], "c"), (int, 1.5), (int, None),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_an_annotation_are_refused(annotation: Any, value: object) -> None:
    with refused(Invalid):
        read(annotation, value)


def test_a_default_says_what_a_list_means() -> None:
    assert read(inspect.Parameter.empty, [1, 2], default=(3, 4)) == (1, 2)
    assert read(inspect.Parameter.empty, [1, 2], default=[3, 4]) == [1, 2]
    assert read(int, None, default=None) is None
    assert listed((1, (2,))) == [1, [2]]


def wrong(target: Any, handed: tuple[str, ...] | None = None, **given: Any) -> dict[str, str]:
    errors = wrong_arguments(target, "it", given, (), handed)
    return {str(error.at[0]): f"{error.message}; {error.hint}" for error in errors}


def test_names_of_fields_are_those_of_arguments() -> None:
    assert wrong(Part, rate=1.0) == {}
    assert wrong(Part, rat=1.0) == {"rat": "it has no parameter 'rat'; Did you mean rate?"}
    assert wrong(targets.anything, whatever=1) == {}
    assert "is positional-only in" in wrong(targets.by_position, size=1)["size"]


def test_what_is_required_and_what_is_handed_over() -> None:
    assert wrong(Part) == {}
    assert wrong(Part, ()) == {"size": "it needs 'size', which is not given; "}
    assert wrong(Part, ("*",)) == {}
    assert wrong(Part, ("size",), size=3) == {
        "size": "is an argument that the program passes itself; leave it out; "
    }


PART = {"type": "import", "target": "a.b", "size": 3}


def read_plain(value: object) -> Any:
    return read_argument(value, Origin(PROGRAM))


def test_arguments_may_be_components() -> None:
    assert isinstance(read_plain(PART), Partial)
    assert isinstance(read_plain(PlainScalar("{type = import, target = a.b}")), Partial)
    assert isinstance(read_plain({"type": "name", "target": "a.b"}), ImportedName)
    assert str(read_plain(targets.double).target) == f"{targets.__name__}.double"
    kinds = [kind_of(read_plain(value)) for value in (PART, [PART, PART], {"x": PART})]
    assert kinds == ["section", "list", "mapping"]
