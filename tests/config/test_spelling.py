"""What is said about values that are written as other systems write them."""

from typing import Literal

import pytest

from setpoint.config import Config, field
from setpoint.config.composition import compose
from setpoint.config.draft.hints import explained
from setpoint.config.values.origin import PROGRAM, Origin

from .helpers import problems_of


class Kind(Config):
    pass


class Plain(Kind, type="plain"):
    pass


class Fancy(Kind, type="fancy"):
    pass


class Format(Config):
    compute: Literal["fp32", "fp16"] = "fp32"


class Pair(Config):
    left: int = 1
    mode: Literal["a", "b"] = "a"


class Experts(Config):
    count: int = field(ge=1)
    chosen: int = 2


class Root(Config, other_names=__name__):
    seed: int | None = 1
    count: int = 1
    format: Format = field(factory=Format)
    pair: Pair | None = field(factory=Pair)
    experts: Experts | None = None
    kind: Kind = field(factory=Plain)
    names: tuple[str, ...] = ()


OTHER_VALUES = {"format.compute": {"fp16": ("half", "16")}, "kind": {"plain": ("none",)}}


@pytest.mark.parametrize(
    ("flag", "message", "hint"),
    [
        ("format.compute=half", "is not one of the valid", "Setpoint calls it fp16."),
        ("format.compute=torch.half", "is not one of the valid", "Setpoint calls it fp16."),
        ("format=fp32", "is not a section", "Did you mean format.compute=fp32?"),
        ("format=x", "is not a section", "Did you mean format.compute?"),
        ("pair=b", "is not a section", "Did you mean pair.mode=b?"),
        ("pair=7", "is not a section", ""),
        ("experts=8", "is not a section", "Did you mean experts.count=8?"),
        ("experts=0", "is not a section", ""),
        ("experts=x", "is not a section", ""),
        ("pair=None", "is not a section", "Write null for no value."),
        (
            "pair=false",
            "is not a section",
            "Switch it on, with its defaults, with --pair '{}'; off with --pair null.",
        ),
        ("seed=None", "is not an int", "Write null for no value."),
        ("seed=x", "is not an int", ""),
        ("count=none", "is not an int", ""),
        ("count=null", "cannot be null", ""),
        ("kind=none", "is not one of the valid", "Setpoint calls it plain."),
        ("kind=null", "cannot be null", ""),
        ("names=null", "", ""),
    ],
)
def test_what_was_meant(flag: str, message: str, hint: str) -> None:
    if not message:
        assert compose(Root, flags=[flag]).resolve().names == ("null",)
        return
    (problem,) = problems_of(lambda: compose(Root, flags=[flag]).resolve())
    assert problem.message.startswith(message)
    assert problem.hint == hint


def test_other_errors_stay_as_they_are() -> None:
    from setpoint.config import Invalid

    info = Root.__setpoint__.fields["seed"]
    for error in (Invalid("is out of range"), Invalid("is not a float", secret=True)):
        assert explained(info, "none", error, ("seed",), Origin(PROGRAM)) is error
