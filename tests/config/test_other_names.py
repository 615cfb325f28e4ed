"""A root's own table of what other systems call things."""

from functools import partial

import pytest

from setpoint.config import Config, field
from setpoint.config.composition import compose
from setpoint.config.draft.hints import OtherName
from setpoint.config.other_names import ForeignKey, Replacement

from .helpers import problems_of


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
    ("flags", "hint"),
    [
        ("--rpm=120", "Setpoint calls it motor.speed, in turns per second: --motor.speed 2"),
        ("--velocity=3", "Setpoint calls it motor.speed: --motor.speed 3"),
        # What would be refused is not suggested.
        ("--velocity=-3", "Setpoint calls it motor.speed."),
        ("--rpm=0", "Setpoint calls it motor.speed, in turns per second."),
        ("--coasting=1", "Setpoint calls it share, a share: --share 0.5"),
        ("--coasting=1 --motor.speed=4", "Setpoint calls it share, a share: --share 0.25"),
        ("--coasting=1 --velocity=8", "Setpoint calls it share, a share: --share 0.125"),
        ("--coasting=x", "Setpoint calls it share."),
        (
            "--spare_motor=1",
            "Setpoint calls it spare.speed and spare.mode: "
            '--spare.speed 1 --spare.mode "very slow"',
        ),
        ("--gearbox=1", "There are no gears."),
        ("--gearbox.teeth=1", "There are no gears."),
        ("--a.0.Velocity=3", "Setpoint calls it motor.speed: --motor.speed 3"),
        ("--old.velocity=1", "Setpoint calls it share: --share 1"),
        ("--rate=1", "Setpoint calls it share: --share 1"),
        ("--a.rate=1", ""),
        ("--wheels=4", ""),
        # A misspelt name of another system.
        ("--a.velocty=3", "Did you mean motor.speed?"),
    ],
)
def test_keys_of_other_systems(flags: str, hint: str) -> None:
    problems = problems_of(partial(compose(Machine, flags=flags.split()).resolve))
    assert next(each.hint for each in problems if each.path in flags.split()[0]) == hint


def test_a_section_in_python_finds_the_names_of_its_root() -> None:
    problems = problems_of(partial(Motor, velocity=3, sped=2, share=1))
    assert {problem.path: problem.hint for problem in problems} == {
        "Motor.velocity": "Setpoint calls it motor.speed.",
        "Motor.sped": "Did you mean motor.speed?",
        "Motor.share": "Did you mean share?",
    }


def test_a_subclass_has_the_table_of_its_root() -> None:
    class Own(Machine):
        pass

    (problem,) = problems_of(partial(compose(Own, flags=["--gearbox"]).resolve))
    assert problem.hint == "There are no gears."


def test_the_keys_of_a_section_stand_once_in_a_report() -> None:
    with pytest.raises(Exception) as caught:
        compose(Machine, flags=["--a=1", "--b=1", "--motor.c=1", "--motor.d=1"]).resolve()
    assert str(caught.value).count("Valid: motor, share, spare") == 1
    assert str(caught.value).count("Valid: mode, speed") == 1


def test_a_number_is_no_name() -> None:
    (problem,) = problems_of(lambda: compose(Machine, flags=["--7=1"]).resolve())
    assert problem.path == "7" and problem.message.startswith("unknown key")
