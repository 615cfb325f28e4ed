"""PyTorch's long warnings are left out where one line of Setpoint's says the same."""

from __future__ import annotations

import logging

import pytest

from setpoint.compile.apply import LOGGERS, is_repeated, quiet_compiler

from .models import SETTINGS, Asking, compiled, stack, train_on


class Kept(logging.Handler):
    """Keeps what reaches the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def heard(environment: str | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What PyTorch says of a graph that ends and of code that is compiled too often."""
    if environment is None:
        monkeypatch.delenv("TORCH_LOGS", raising=False)
    else:
        monkeypatch.setenv("TORCH_LOGS", environment)
    kept, logger = Kept(), logging.getLogger("torch._dynamo")
    logger.addHandler(kept)
    try:
        model = stack(Asking)
        compiled(model)
        train_on(model, 3)
        model = stack()
        compiled(model, recompile_limit=1, dynamic=False)
        for rows in (2, 3, 4):
            train_on(model, rows)
    finally:
        SETTINGS.close()
        logger.removeHandler(kept)
    return kept.lines


def test_warnings_that_are_told_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert heard(None, monkeypatch) == []


def test_who_asks_for_logs_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which shows as well that PyTorch would say something."""
    lines = heard("+dynamo", monkeypatch)
    assert any("hit config.recompile_limit" in line for line in lines)


def test_other_warnings_are_heard_and_all_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    before = [list(logging.getLogger(name).filters) for name in LOGGERS]
    with pytest.raises(ValueError, match="x"), quiet_compiler():
        assert all(len(logging.getLogger(name).filters) for name in LOGGERS)
        raise ValueError("x")
    assert [list(logging.getLogger(name).filters) for name in LOGGERS] == before


@pytest.mark.parametrize(
    ("level", "text", "told"),
    [
        (logging.WARNING, "torch._dynamo hit config.%s (%s)", True),
        (logging.WARNING, "Graph break from `Tensor.item()`, consider setting:", True),
        (logging.WARNING, "something else", False),
        (logging.ERROR, "Graph break", False),
    ],
)
def test_what_is_told(level: int, text: str, told: bool) -> None:
    record = logging.LogRecord("x", level, "file", 1, text, (), None)
    assert is_repeated(record) is told
