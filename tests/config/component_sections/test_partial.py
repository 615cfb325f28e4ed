from typing import Any

import pytest

import setpoint as sp
from setpoint.config.component_sections import Partial

from ...support.snapshots import compare
from ..helpers import placeless
from . import targets
from .sample import Net
from .targets import Part, Whole

check_all: Any = sp.partial


def test_it_is_a_section() -> None:
    part: Any = sp.partial(Part, size=3)
    assert isinstance(part, Partial)
    assert (str(part.target), part.size) == (f"{targets.__name__}.Part", 3)
    part.size = 4
    assert part().size == 4


def test_classes_inside_classes_and_texts() -> None:
    inner: Any = sp.partial(Part.Inner)
    assert str(inner.target) == f"{targets.__name__}:Part.Inner"
    assert isinstance(inner(), Part.Inner)
    assert str(check_all("torch.optim.Adagrad", lr=0.1).target) == "torch.optim.Adagrad"


def test_a_family_takes_it_as_its_own_variant() -> None:
    net = Net(optimizer=sp.partial(Part, rate=0.5))
    assert type(net.optimizer).__name__ == "Imported"
    with pytest.raises(sp.ConfigError, match="is not a section with type = relu or import"):
        net.act = check_all(Part).build


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
            check_all(target, *args, **arguments)
        assert "hunter2" not in str(caught.value)
        texts.append(str(caught.value))
    import re

    compare(
        "config/component_sections/partial", re.sub(r" at 0x\w+", "", placeless("\n\n".join(texts)))
    )
