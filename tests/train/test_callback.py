"""Callbacks: what the base class refuses."""

from __future__ import annotations

import pytest

from setpoint.config import SetpointError
from setpoint.train.callback import Callback


def test_a_hook_of_an_older_version_is_refused() -> None:
    """It would never be called, and nobody would notice."""
    with pytest.raises(SetpointError, match=r"Mine\.after_update .* after_step\(loop, result\)"):

        class Mine(Callback):  # pyright: ignore[reportUnusedClass]
            def after_update(self, loop: object, update: object) -> None:
                pass
