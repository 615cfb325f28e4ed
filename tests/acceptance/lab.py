"""A user's own configuration, which has nothing to do with training, and its history."""

from collections.abc import Callable, Iterable, Iterator

import setpoint as sp
from setpoint.config import Converted, Operation, Renamed, Retired, migration


class Retry(sp.Config):
    """How often something is tried again."""

    count: int = sp.field(default=3, ge=0, le=20)
    """How often."""

    wait: float = sp.field(default=1.0, gt=0, tags=("pace",), role=sp.RUNTIME)
    """Seconds between two tries."""

    longest: float = sp.derived(role=sp.RUNTIME)
    """Seconds in all; count * wait unless given."""

    @sp.derive("longest")
    def _derive_longest(self) -> float:
        return self.count * self.wait


class Service(sp.Config):
    """Something that is called."""

    name: str = sp.field(pattern="[a-z]+")
    """What it is called."""

    token: sp.Secret | None = None
    """How to sign in."""

    retry: Retry | None = None
    """How often it is tried again; null: as the study says."""


class Shape(sp.Config):
    """A family."""


class Round(Shape, type="round"):
    """With a radius."""

    radius: float = sp.field(default=1.0, gt=0)
    """Half of the width."""

    color: str = "red"
    """Of the inside."""


class Square(Shape, type="square"):
    """With a side."""

    side: float = sp.field(default=2.0, gt=0)
    """The width."""

    color: str = "red"
    """Of the inside."""


class Study(sp.Config, schema=2, migrations=__name__):
    """The root."""

    retry: Retry = sp.field(factory=Retry)
    """How often anything is tried again."""

    services: list[Service] = sp.field(factory=list)
    """What is called."""

    shape: Shape = sp.field(factory=Round)
    """What is drawn."""

    more: list[Shape | None] = sp.field(factory=list)
    """Also drawn."""

    limits: dict[str, tuple[int, float]] = sp.field(factory=dict)
    """Pairs by name."""

    change: Callable[[float], float] | None = None
    """What is done with numbers."""

    pace: float = sp.field(default=1.0, gt=0, tags=("pace",), role=sp.RUNTIME)
    """Seconds between two services."""

    hours: int = sp.field(default=1, ge=1, role=sp.BUDGET)
    """How long it may take."""

    @sp.rule
    def _check_services(self) -> Iterator[sp.Problem]:
        if len(self.services) > self.hours * 10:
            most = self.hours * 10
            yield sp.Problem("services", f"{len(self.services)} do not fit into {most} slots")

    @sp.dead("pace")
    def _pace_is_dead(self) -> str | None:
        return "a single service waits for no other" if len(self.services) == 1 else None


@migration(to=2)
def second() -> Iterable[Operation]:
    """A section for what is tried again; seconds in place of milliseconds."""
    return [
        Renamed("tries", "retry.count"),
        Renamed("pause", "retry.wait"),
        Converted("retry.wait", lambda milliseconds: milliseconds / 1000, "seconds, not ms"),
        Retired("fast", "everything is fast now", neutral=True),
    ]


def halve(value: float) -> float:
    """A function that a configuration can name."""
    return value / 2
