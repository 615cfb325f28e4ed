"""The section `[checkpoint]` through the real kernel."""

from __future__ import annotations

from typing import Any

import pytest

from setpoint.checkpoint.config import Checkpoint
from setpoint.config import RUNTIME, ConfigError, SetpointError, resolve
from setpoint.editor_schema.help import field_help
from setpoint.units import Period


def test_defaults() -> None:
    section = resolve(Checkpoint())
    assert section.every == Period("100 steps")
    assert (section.keep, section.keep_best, section.resume) == (2, True, "auto")


def test_each_field_has_help_and_is_runtime_but_for_what_a_run_starts_from() -> None:
    others: list[str] = []
    for name, info in Checkpoint.__setpoint__.fields.items():
        assert field_help(Checkpoint, name)
        if (info.role or Checkpoint.__setpoint__.role) is not RUNTIME:
            others.append(name)
    assert others == ["load", "exclude"]


def test_values() -> None:
    section = Checkpoint(every="10 min", keep=None, resume="must")  # type: ignore[arg-type]
    assert resolve(section).keep is None
    for name, value in (("keep", 0), ("keep", 1.5), ("resume", "yes"), ("every", "sometimes")):
        with pytest.raises(SetpointError):
            setattr(section, name, value)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"last_dtype": "bf16"}, "last_dtype"),
        ({"keep_every": "last_step"}, "keep_every"),
        ({"keep_every": "9 steps", "keep": None}, "keep_every"),
        ({"save": False, "every": "9 steps"}, "every"),
        ({"save": False, "last": "weights"}, "last"),
        ({"save": False, "at": "powers_of_two"}, "at"),
        ({"save": False, "at_start": True}, "at_start"),
        ({"save": False, "keep_every": "9 steps"}, "keep_every"),
        ({"save": False, "mode": "async"}, "mode"),
    ],
)
def test_what_would_have_no_effect(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(Checkpoint(**flags))
    assert [problem.path for problem in caught.value.problems] == [said]


def test_steps_are_counted_from_one() -> None:
    assert resolve(Checkpoint(at=(3, 1))).at == (3, 1)
    for value in ((0,), "powers_of_three", (1.5,), 3):
        with pytest.raises(SetpointError):
            Checkpoint(at=value)  # type: ignore[arg-type]
