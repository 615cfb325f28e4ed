"""Presets that tests write as Python and run are registered for one test only."""

from collections.abc import Iterator

import pytest

from setpoint.config.layers.presets import presets


@pytest.fixture(autouse=True)
def forget_written_presets() -> Iterator[None]:
    yield
    presets.pop("my-preset", None)
