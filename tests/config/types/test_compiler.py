"""What stands beside a field must fit its type."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NewType, TypeVar

import pytest

from setpoint.config import Config, SetpointError, resolve
from setpoint.config.types.compiler import compile_annotation
from setpoint.units import Period

from ...support.snapshots import refused
from ..sample import Batch, Experts
from .test_default import wrong


def test_a_name_that_is_not_there_at_run_time_is_explained() -> None:
    class Root(Config):
        x: Nowhere  # noqa: F821

    with refused(TypeError):
        _ = Root.__setpoint__.fields["x"].type


Uid = NewType("Uid", int)


@pytest.mark.parametrize(
    ("annotation", "same"),
    [
        (Sequence[int], tuple[int, ...]), (Sequence, tuple[Any, ...]), (tuple, tuple[Any, ...]),
        (list, list[Any]), (dict, dict[str, Any]), (Mapping, dict[str, Any]), (Uid, int),
    ],
)  # fmt: skip
def test_other_words_for_the_same(annotation: Any, same: Any) -> None:
    kind, other = compile_annotation(annotation, "here"), compile_annotation(same, "here")
    assert (type(kind), kind.describe()) == (type(other), other.describe())
    assert getattr(kind, "mutable", None) == getattr(other, "mutable", None)


@dataclasses.dataclass
class Data:
    x: int = 1


def test_other_annotations_are_refused_with_what_is_valid() -> None:
    kinds: list[Any] = [
        *(set, set[int], bytes, complex, Data, TypeVar("T"), dict[int, str]),
        *(datetime.date, Iterator[int], type(None), int | bytes),
        *(Batch | int, Batch | Experts, [1], type("Other", (), {})),
    ]
    for kind in kinds:
        with refused(TypeError) as caught:
            compile_annotation(kind, "Job.x")
        assert isinstance(caught.value, SetpointError)


@pytest.mark.parametrize("text", ["Nowhere", "int[3]", "list[set[int]] | None", "bytes"])
def test_annotations_of_fields_that_are_never_set_are_checked(text: str) -> None:
    namespace = {
        "__module__": __name__,
        "__qualname__": "Wrong",
        "__annotations__": {"x": f"{text}"},
        "x": None,
    }
    meta: Any = type(Config)
    with refused():
        resolve(meta("Wrong", (Config,), namespace)())


@pytest.mark.parametrize(
    ("head", "annotation"),
    [
        ("int = str", "int"),
        ("Literal = dict", "Literal[str, int]"),
        ("tuple = list", "tuple[int]"),
        ("", "Literal['a', 'b'] | None"),
        ("", "tuple[list[int], dict[str, float]]"),
    ],
)
def test_names_mean_what_their_module_says(
    head: str, annotation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("module_with_names")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    imports = "from setpoint.config import Config\nfrom typing import Literal\n"
    body = f"class Names(Config):\n    x: {annotation!r}\n    y: {annotation!r}\n"
    code = compile(f"{imports}{head}\n{body}", module.__name__, "exec", dont_inherit=True)
    exec(code, vars(module))
    spaces = vars(module)
    fields = spaces["Names"].__setpoint__.fields
    expected = compile_annotation(eval(annotation, spaces), "Names.x")
    for name in ("x", "y"):
        assert fields[name].type.describe() == expected.describe()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (str, {"default": "a", "ge": 1}),
        (Period, {"default": Period("1 step"), "ge": 1}),
        (tuple[int, ...], {"default": (1,), "ge": 1}),
        (int, {"default": 1, "pattern": "a"}),
        (str, {"default": "a", "pattern": "["}),
        (str | None, {"default": None, "pattern": "["}),
        (int, {"default": 1, "item_ge": 1}),
        (list[str], {"factory": list, "item_ge": 1}),
    ],
    ids=str,
)
def test_annotations_that_no_value_fits_are_refused(kind: object, options: dict[str, Any]) -> None:
    with refused():
        resolve(wrong(kind, **options)())
