from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import setpoint as sp
from setpoint.config import Config, ConfigError, resolve
from setpoint.config.schema.field import component
from setpoint.config.types.compiler import Component

from .component_sections.sample import Imported, Optimizer, Plain
from .component_sections.targets import Part

if TYPE_CHECKING:
    from nowhere import (  # pyright: ignore[reportMissingImports]
        Forgotten,  # pyright: ignore[reportUnknownVariableType]
        Result,  # pyright: ignore[reportUnknownVariableType]
    )


class Job(Config):
    optimizer: Component[Optimizer, Result] = component(  # pyright: ignore[reportUnknownVariableType]
        factory=Plain, tags=("a",)
    )
    """What it builds is named for type checkers only."""


def test_it_takes_the_family_and_partials() -> None:
    assert type(resolve(Job()).optimizer) is Plain
    job = Job(optimizer=sp.partial(Part, rate=0.5))
    assert isinstance(job.optimizer, Imported)
    job.optimizer = Plain(lr=3.0)
    with pytest.raises(ConfigError, match="is not a section with type = plain or import"):
        job.optimizer = 3.5
    info = Job.__setpoint__.fields["optimizer"]
    assert info.tags == ("a",)


def test_the_family_itself_must_be_there() -> None:
    class Lost(Config):
        part: Component[Forgotten, int] = component(factory=Plain)  # pyright: ignore[reportUnknownVariableType]

    with pytest.raises(TypeError, match="cannot be the type of a config's field"):
        assert Lost.__setpoint__.fields["part"].type
