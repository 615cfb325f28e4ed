"""`ImportPath`: its forms, and fields of objects by path."""

import pickle
from collections.abc import Callable

import pytest

from setpoint.config import Config, ImportPath, Invalid, field
from setpoint.config.composition import compose
from setpoint.config.types.base import ImportPathType
from setpoint.config.values.origin import PROGRAM, Origin

from ..support.snapshots import refused
from .component_sections import targets
from .component_sections.targets import Part, double


class Uses(Config):
    function: Callable[[int], int] = field(default=double)
    cls: type[Part] | None = None
    path: ImportPath | None = None
    several: tuple[Callable[..., object], ...] = ()


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("torch.optim.Adagrad", "torch.optim.Adagrad"),
        ("torch.optim:Adagrad", "torch.optim.Adagrad"),
        ("a.b:C.method", "a.b:C.method"),
        (" a.b ", "a.b"),
    ],
)
def test_paths_have_one_canonical_form(text: str, canonical: str) -> None:
    path = ImportPath(text)
    assert path.dump() == str(path) == canonical
    assert path == ImportPath(canonical)
    assert len({path, ImportPath(canonical)}) == 1
    assert pickle.loads(pickle.dumps(path)) == path


@pytest.mark.parametrize("text", ["", ".a.b", "a.b()", "a.1", "a.if", "a:b:c", "a.b" * 200])
def test_texts_that_are_no_paths_are_refused(text: str) -> None:
    with refused(Invalid):
        ImportPath(text)


def test_objects_are_kept_by_their_shortest_path() -> None:
    import torch

    assert str(ImportPath(torch.optim.Adagrad)) == "torch.optim.Adagrad"
    assert str(ImportPath(torch.nn.Linear)) == "torch.nn.Linear"
    assert str(ImportPath(Part.Inner)) == f"{targets.__name__}:Part.Inner"


def test_the_class_is_checked_when_it_is_there() -> None:
    config = compose(Uses, flags=[f"--cls={targets.__name__}.double"]).resolve()
    assert config.cls is not None
    with refused():
        config.cls()


def test_a_package_under_another_name() -> None:
    path = ImportPath(f"{__name__}.pytest.nope", ("tests", "pytest"))
    with refused():
        path.load()


ORIGIN = Origin(PROGRAM)


def test_only_classes_of_the_kind() -> None:
    kind = ImportPathType(targets.Part)
    assert kind.read(targets.Part, ORIGIN) == ImportPath(targets.Part)
    for value in (targets.Whole, targets.double, 3, None):
        with refused(Invalid):
            kind.read(value, ORIGIN)
