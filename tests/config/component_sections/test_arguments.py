from typing import Any

import pytest

from setpoint.config import Invalid
from setpoint.config.component_sections import ImportedName, Partial, kind_of, read_argument
from setpoint.config.values.origin import PROGRAM, Origin
from setpoint.config.words.plain_data import PlainScalar

from . import targets

PART = {"type": "import", "target": "a.b", "size": 3}


def read(value: object) -> Any:
    return read_argument(value, Origin(PROGRAM))


def test_plain_data_stays_plain() -> None:
    assert read(PlainScalar("1e-5")) == 1e-5
    assert read(PlainScalar("[1, {a: b}]")) == (1, {"a": "b"})
    assert read({"type": "linear"}) == {"type": "linear"}
    assert read({"type": {"a": 1}, "target": 2}) == {"type": {"a": 1}, "target": 2}
    assert [kind_of(read(value)) for value in (1, "a", [], {}, [1], {"a": 1})] == ["plain"] * 6


def test_components() -> None:
    assert isinstance(read(PART), Partial)
    assert isinstance(read(PlainScalar("{type = import, target = a.b}")), Partial)
    assert isinstance(read({"type": "name", "target": "a.b"}), ImportedName)
    assert str(read(targets.double).target) == f"{targets.__name__}.double"
    kinds = [kind_of(read(value)) for value in (PART, [PART, PART], {"x": PART})]
    assert kinds == ["section", "list", "mapping"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([PART, 3], "must be a component, as the others are"),
        ({"a": PART, "b": 3}, "must be a component, as the others are"),
        ([[PART]], "holds a component that is nested too deeply"),
        ({"a": {"b": PART}}, "holds a component that is nested too deeply"),
        (object(), "is not plain data"),
        ({"type": "import", "target": "x"}, "is not an import path"),
    ],
)
def test_what_is_neither(value: object, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        read(value)
