"""What a modifier set and a later layer set to something else."""

from pathlib import Path

from setpoint.config.composition import compose
from setpoint.config.draft.walk import dropped_values, overridden
from setpoint.presets.modifiers import smoke
from setpoint.train.config import Job


def lines(source: str | None, *flags: str, modifiers: tuple[str, ...] = ("smoke",)) -> list[str]:
    assert smoke  # registered by name
    return list(overridden(compose(Job, source, modifiers=modifiers, flags=flags).resolve()))


def test_each_value_that_a_later_layer_replaced(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text('name = "exp"\nduration = "7 steps"\n')
    assert lines(str(file)) == []  # what is typed beats what is written
    assert lines(str(file), "duration=5 steps") == [
        "duration = '10 steps' of --with smoke, by command line duration"
    ]
    assert lines(None, "evaluation.sequences=4") == [
        "evaluation.sequences = 16 of --with smoke, by command line evaluation.sequences"
    ]
    (line,) = lines(None, modifiers=("smoke", "smoke(steps=3)"))
    assert line.startswith("duration = '10 steps' of --with smoke, by modifier smoke(steps=3) (")


def test_nothing_is_said_where_nothing_is_lost() -> None:
    assert lines(None) == []
    assert lines(None, "duration=10 steps") == []
    assert lines(None, "duration=7 steps", modifiers=()) == []


def test_a_null_that_a_later_value_takes_back_is_dropped() -> None:
    def dropped(*flags: str) -> list[str]:
        return list(dropped_values(compose(Job, flags=flags).resolve(), "evaluation"))

    off, on = "evaluation=null", "evaluation.every=3 steps"
    assert dropped(off, on) == [
        "evaluation = null, from command line evaluation: command line evaluation.every sets a "
        "field of the section after it"
    ]
    assert not any("= null," in line for line in dropped(off, on, off)) and dropped(off) == []
