import pytest

from setpoint.config.foreign import allow


@pytest.fixture(autouse=True)
def _only_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow no modules but those of the tests, whatever the rest of the session has allowed."""
    monkeypatch.setattr(allow, "_named", {"tests"})
    monkeypatch.delenv(allow.VARIABLE, raising=False)
