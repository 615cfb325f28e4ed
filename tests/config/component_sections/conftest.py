import pytest

from setpoint.config.values import user_code


@pytest.fixture(autouse=True)
def _only_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow no modules but those of the tests, whatever the rest of the session has allowed."""
    monkeypatch.setattr(user_code, "_named", {"tests"})
    monkeypatch.delenv(user_code.VARIABLE, raising=False)
