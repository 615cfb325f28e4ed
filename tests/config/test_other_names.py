"""A root's own table of what other systems call things."""

import pytest

from setpoint.config import Config, ConfigError, field
from setpoint.config.composition import compose
from setpoint.config.draft.hints import OtherName
from setpoint.config.other_names import ForeignKey, Replacement

from ..support.snapshots import refused


class Motor(Config):
    speed: float = field(default=2.0, gt=0)
    mode: str = "slow"


class Machine(Config, other_names=__name__):
    motor: Motor = field(factory=Motor)
    share: float = field(default=0.5, ge=0, le=1)
    spare: Motor | None = None


def _share(key: ForeignKey) -> Replacement | str | None:
    faster = key.other_key("velocity")
    speed = faster.number if faster else key.of("motor.speed")
    if key.number is None or speed is None:
        return None
    return Replacement({"share": key.number / speed}, "a share")


def _rpm(key: ForeignKey) -> Replacement:
    return Replacement({"motor.speed": (key.number or 0) / 60}, "in turns per second")


def _spare(_: ForeignKey) -> Replacement:
    return Replacement({"spare.speed": 1, "spare.mode": "very slow"})


OTHER_NAMES = {
    "velocity": OtherName(("motor.speed",)),
    "old.velocity": OtherName(("share",)),
    ".rate": OtherName(("share",)),
    "wheels": OtherName(("of.another.root",)),
    "rpm": OtherName(("motor.speed",), _rpm),
    "coasting": OtherName(("share",), _share),
    "spare_motor": OtherName(("spare",), _spare),
    "gearbox": OtherName(answer="There are no gears."),
    "gearbox.*": OtherName(answer="There are no gears."),
}


@pytest.mark.parametrize(
    "flags",
    [
        "--rpm=120",
        "--velocity=3",
        # What would be refused is not suggested.
        "--velocity=-3",
        "--rpm=0",
        "--coasting=1",
        "--coasting=1 --motor.speed=4",
        "--coasting=1 --velocity=8",
        "--coasting=x",
        "--spare_motor=1",
        "--gearbox=1",
        "--gearbox.teeth=1",
        "--a.0.Velocity=3",
        "--old.velocity=1",
        "--rate=1",
        "--a.rate=1",
        "--wheels=4",
        # A misspelt name of another system.
        "--a.velocty=3",
        "--7=1",
        # The keys of a section are listed once in a report.
        "--a=1 --b=1 --motor.c=1 --motor.d=1",
    ],
)
def test_keys_of_other_systems(flags: str) -> None:
    with refused(ConfigError):
        compose(Machine, flags=flags.split()).resolve()


def test_a_section_in_python_finds_the_names_of_its_root() -> None:
    with refused(ConfigError):
        Motor(velocity=3, sped=2, share=1)  # pyright: ignore[reportCallIssue]


def test_a_subclass_has_the_table_of_its_root() -> None:
    class Own(Machine):
        pass

    with refused(ConfigError):
        compose(Own, flags=["--gearbox"]).resolve()
