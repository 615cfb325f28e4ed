import pytest

from setpoint.config import ImportPath, Invalid
from setpoint.config.types.base import ImportPathType
from setpoint.config.values.origin import PROGRAM, Origin

from ..component_sections import targets

HERE = Origin(PROGRAM)


def test_the_type_gives_its_trust_to_what_it_reads() -> None:
    kind = ImportPathType(None, ("tests",))
    path = kind.read(f"{targets.__name__}.double", HERE)
    assert path.load() is targets.double
    assert kind.dump(path) == f"{targets.__name__}.double"
    given = ImportPath("a.b", ("a",))
    assert kind.read(given, HERE).trusted == ("a", "tests")
    assert given.trusted == ("a",)


def test_only_classes_of_the_kind() -> None:
    kind = ImportPathType(targets.Part)
    assert kind.read(targets.Part, HERE) == ImportPath(targets.Part)
    for value in (targets.Whole, targets.double, 3, None):
        with pytest.raises(Invalid, match="subclass of Part"):
            kind.read(value, HERE)
