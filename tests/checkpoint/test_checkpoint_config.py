"""The section `[checkpoint]` through the real kernel."""

from __future__ import annotations

import pytest

from setpoint.checkpoint.config import Checkpoint
from setpoint.config import RUNTIME, SetpointError, resolve
from setpoint.editor_schema.help import field_help
from setpoint.units import Period


def test_defaults() -> None:
    section = resolve(Checkpoint())
    assert section.every == Period("100 steps")
    assert (section.keep, section.keep_best, section.resume) == (2, True, "auto")


def test_each_field_has_help_and_is_runtime() -> None:
    for name, info in Checkpoint.__setpoint__.fields.items():
        assert field_help(Checkpoint, name)
        assert (info.role or Checkpoint.__setpoint__.role) is RUNTIME


def test_values() -> None:
    section = Checkpoint(every="10 min", keep=None, resume="must")  # type: ignore[arg-type]
    assert resolve(section).keep is None
    for name, value in (("keep", 0), ("keep", 1.5), ("resume", "yes"), ("every", "sometimes")):
        with pytest.raises(SetpointError):
            setattr(section, name, value)
