"""Objects that imported targets make of their sections."""

from typing import Any

import pytest

import setpoint as sp
from setpoint.config import resolve
from setpoint.config.component_sections import Partial, partial
from setpoint.config.composition import compose
from setpoint.config.values.user_code import allow_imports

from ...support.snapshots import compare, refused
from ..helpers import placeless
from . import targets
from .sample import Net
from .targets import Part, Whole

HERE = targets.__name__


def check_all(target: Any, **arguments: Any) -> Any:
    """A component whose arguments were not compared with its target yet."""
    section: Any = Partial(target=target)
    for name, value in arguments.items():
        setattr(section, name, value)
    return section


def test_arguments_are_built_first_and_shared_ones_once() -> None:
    shared = partial(Part, size=2)
    whole: Any = partial(
        Whole, size=1, part=shared, parts=[shared, partial(Part, size=3)], by_name={"a": shared}
    )
    given = resolve(Net(act=whole)).act.build().given
    assert given["part"] is given["parts"][0] is given["by_name"]["a"]
    assert [part.size for part in given["parts"]] == [2, 3]


def test_values_reach_the_target_as_it_wants_them() -> None:
    whole: Any = partial(Whole, size=1, rate=2, betas=[1, 2], act=targets.double, free=[1, [2]])
    given = whole.build().given
    assert isinstance(given["rate"], float)
    assert given["betas"] == (1.0, 2.0)
    assert given["act"] is targets.double
    assert given["free"] == (1, [2])


def test_a_file_gives_the_same_as_python() -> None:
    allow_imports("tests")
    act = {
        "type": "import", "target": f"{HERE}.Whole", "size": 1, "betas": [1, 2],
        "act": f"{HERE}.double", "part": {"type": "import", "target": f"{HERE}.Part", "size": 4},
    }  # fmt: skip
    given = compose(Net, program={"act": act}).resolve().act.build().given
    assert given["betas"] == (1.0, 2.0)
    assert given["act"] is targets.double
    assert given["part"].size == 4


def test_typed_fields_are_handed_over_where_they_are_taken() -> None:
    net = resolve(Net(optimizer=partial(targets.anything, x=1)))
    assert net.optimizer.build(y=2) == {"x": 1, "y": 2}  # lr is not a parameter of its own
    net = resolve(Net(optimizer=partial(targets.by_position, rate=3)))
    assert net.optimizer(7) == (7, 3.0)


def test_what_cannot_be_constructed_is_explained() -> None:
    section: Any
    for section in (
        check_all(targets.Part),
        partial(targets.failing, size=3),
        check_all(f"{HERE}.Whole", size=1, part=3, mood="b"),
        check_all("os.system", command="true"),
        Partial(target=f"{HERE}.NUMBER"),
    ):
        with refused():
            section.build()


any_partial: Any = sp.partial


def test_classes_inside_classes_and_texts() -> None:
    inner: Any = sp.partial(Part.Inner)
    assert str(inner.target) == f"{targets.__name__}:Part.Inner"
    assert isinstance(inner(), Part.Inner)
    assert str(any_partial("torch.optim.Adagrad", lr=0.1).target) == "torch.optim.Adagrad"


def test_mistakes_are_errors_at_the_line() -> None:
    texts: list[str] = []
    for target, args, arguments in (
        (Part, (), {"rat": 0.3, "size": "x"}),
        (Part, (3,), {}),
        (Whole, (), {"mode": "c", "part": 3, "parts": [sp.partial(Part), 3]}),
        (lambda: 1, (), {}),
        (targets.made_locally(), (), {}),
        (Part(3), (), {}),
        (Whole, (), {"free": "https://me:hunter2@host"}),
        (Whole, (), {"free": Part(3)}),
        (Whole, (), {"free": [[{"type": "import", "target": "a.b"}]]}),
    ):
        with pytest.raises(sp.ConfigError) as caught:
            any_partial(target, *args, **arguments)
        assert "hunter2" not in str(caught.value)
        texts.append(str(caught.value))
    import re

    compare(
        "config/component_sections/partial", re.sub(r" at 0x\w+", "", placeless("\n\n".join(texts)))
    )
