"""No trace of one test's settings in the next."""

from collections.abc import Iterator

import pytest

from .models import SETTINGS


@pytest.fixture(autouse=True)
def nothing_compiled_stays() -> Iterator[None]:
    """Take back what compiling sets for the whole process."""
    yield
    SETTINGS.close()
