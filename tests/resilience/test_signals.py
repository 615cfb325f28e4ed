"""Signals become a request to stop, and handlers come back."""

from __future__ import annotations

import os
import signal

import pytest

from setpoint.resilience.signals import StopRequest


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_asks_to_stop(number: int, status: int) -> None:
    with StopRequest() as stop:
        assert not stop.requested
        assert stop.status == 0
        os.kill(os.getpid(), number)
        assert stop.requested
        assert stop.status == status


def test_a_second_ctrl_c_does_not_wait() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.status == 130


def test_a_second_sigterm_waits() -> None:
    """Schedulers send several; the answer is under way."""
    with StopRequest() as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.status == 75


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [(signal.SIGINT, signal.SIGTERM, 75), (signal.SIGTERM, signal.SIGINT, 130)],
)
def test_the_last_kind_counts(first: int, second: int, status: int) -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), second)
        assert stop.status == status


def test_the_handlers_of_before_come_back() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with pytest.raises(ValueError), StopRequest():
        assert all(signal.getsignal(number) != before[number] for number in before)
        raise ValueError
    assert {number: signal.getsignal(number) for number in before} == before
