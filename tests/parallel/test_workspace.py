"""Settings of cuBLAS that are not deterministic are found."""

from __future__ import annotations

import pytest

from setpoint.parallel.workspace import VARIABLE, WORKSPACES, unfit_workspace


@pytest.mark.parametrize("value", [None, *WORKSPACES])
def test_what_will_do(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert unfit_workspace() is None


@pytest.mark.parametrize("value", [":0:0", ":4096:2:16:8", ""])
def test_what_will_not(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert unfit_workspace() == value
