"""Signals become a request to stop, and handlers come back."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from setpoint.config import Invalid
from setpoint.resilience import signals
from setpoint.resilience.config import TIMES, TimeLimit
from setpoint.resilience.signals import Abandoned, Stopped, StopRequest, active
from setpoint.units import Length, Period

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGHUP, 75), (signal.SIGINT, 130)],
)
def test_a_signal_asks_to_stop_where_something_is_to_be_saved(number: int, status: int) -> None:
    with StopRequest() as stop:
        stop.has_unsaved = stop.resumable = True
        stop.check()
        assert (stop.requested, stop.status) == (False, 0)
        os.kill(os.getpid(), number)
        assert (stop.requested, stop.status) == (True, status)
        with pytest.raises(Abandoned):
            stop.check()


@pytest.mark.parametrize(
    ("number", "resumable"),
    [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGTERM, True)],
)
def test_where_nothing_would_be_lost_it_ends_at_once(number: int, resumable: bool) -> None:
    with pytest.raises(Stopped) as caught, StopRequest() as stop:
        stop.resumable = resumable
        os.kill(os.getpid(), number)
    assert caught.value.status == (130 if number == signal.SIGINT else 75 if resumable else 143)
    assert not caught.value.lost
    name = signal.Signals(number).name
    assert str(caught.value) == ("interrupted" if name == "SIGINT" else f"stopped by {name}")


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_after_any_signal_does_not_wait(first: int) -> None:
    with StopRequest() as stop:
        stop.has_unsaved = stop.resumable = True
        os.kill(os.getpid(), first)
        with pytest.raises(Stopped) as caught:
            os.kill(os.getpid(), signal.SIGINT)
        assert (caught.value.status, caught.value.lost) == (130, True)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGUSR1])
def test_other_signals_in_quick_succession_wait(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launchers pass on what the group has got; Slurm sends a notice, and SIGTERM later."""
    monkeypatch.setattr(signals.time, "monotonic", lambda: 100.0)
    with StopRequest() as stop:
        stop.has_unsaved = stop.resumable = True
        for number in (first, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert stop.status == (130 if first == signal.SIGINT else 75)


def test_a_repeated_signal_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a checkpoint that is being saved, and for one of another kind."""
    monkeypatch.setattr(signals, "REPEATED", 0.02)
    with StopRequest() as stop:
        stop.has_unsaved = stop.resumable = stop.saving = True
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
            time.sleep(0.03)
        stop.saving = False
        with pytest.raises(Stopped) as caught:
            os.kill(os.getpid(), signal.SIGTERM)
        assert (caught.value.status, caught.value.lost) == (143, True)


def test_a_request_that_was_answered_is_not_answered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks may have agreed on it before all of them, or one of them twice, have heard it."""
    clock = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: clock[0])
    asked: list[bool] = []
    with StopRequest() as stop:
        for wait in (0.0, 0.5, signals.REPEATED, 1.0):
            clock[0] += wait
            os.kill(os.getpid(), signal.SIGUSR2)
            asked.append(stop.saves_now)
            clock[0] += 0.1
            if len(asked) != 3:
                stop.answer_save()
                assert not stop.saves_now
    # The fourth comes before the third is answered.
    assert asked == [True, False, True, True]


def test_the_thread_takes_requests_while_the_main_one_is_busy(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it came counts, not when a long call lets the main thread hear of it."""
    monkeypatch.setattr(signals, "REPEATED", 1e9)
    ends = time.monotonic() + 20
    with StopRequest() as stop:
        stop.watch()
        for answered in (False, True):
            os.kill(os.getpid(), signal.SIGUSR2)
            said = ""
            while "SIGUSR2" not in said:
                assert time.monotonic() < ends
                said = capfd.readouterr().err
                time.sleep(0.01)
            assert ("covers this request" in said) == answered
            assert stop.saves_now != answered
            stop.answer_save()


def test_what_all_ranks_stop_for_is_no_second_signal() -> None:
    with StopRequest() as stop:
        stop.has_unsaved = stop.resumable = True
        stop.agree(signal.SIGINT, None)
        os.kill(os.getpid(), signal.SIGINT)  # the same one, late
        assert (stop.status, stop.cause) == (130, "Ctrl-C")
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGINT)


def ended(code: str, folder: Path | None = None) -> tuple[int, str, str]:
    """The exit status of a program, and what it prints to either stream."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    return done.returncode, done.stdout, done.stderr


LATE = """
    import os, signal, time
    from setpoint.resilience.signals import StopRequest

    with StopRequest() as stop:
        stop.has_unsaved, stop.defers, stop.owns_process, stop.grace = True, True, True, 0.01
        stop.watch()
        stop.agree(signal.SIGTERM, None)
        stop.answer()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
        print(stop.status)
    """


def test_a_signal_that_comes_after_the_last_step_starts_no_grace_period() -> None:
    """A rank that hears late what the others have heard before has as long as they."""
    assert ended(LATE) == (0, "143\n", "")


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_one_inside_another_changes_nothing() -> None:
    with StopRequest() as stop:
        assert active() is stop
        handler = signal.getsignal(signal.SIGTERM)
        with stop:
            stop.has_unsaved = True
        assert not stop.has_unsaved
        assert signal.getsignal(signal.SIGTERM) == handler
    assert active() is None


def test_in_another_thread_only_code_can_ask() -> None:
    found: list[object] = []

    def work() -> None:
        with StopRequest() as stop:
            stop.watch()
            found.append((stop.is_deaf, active()))
            stop.request()
            found.append((stop.requested, stop.status_of(signal.SIGTERM, lost=False)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(True, None), (True, 143)]


BLOCKED = """
    import os, signal, subprocess, sys, time
    from setpoint.resilience import signals
    from setpoint.resilience.signals import StopRequest

    signals.UNWINDING, signals.REPEATED = 0.1, 0.0
    stop = StopRequest()
    with stop:
        stop.has_unsaved, stop.resumable = {busy}, True
        stop.owns_process, stop.grace = True, {grace}
        stop.newest = lambda: "The newest checkpoint is step-7"
        stop.watch()
        # As in a long operation of C: no handler of Python's runs in this thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, {{2, 15, 1}})
        # Sent from outside, while this thread is inside one call.
        subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -TERM {{os.getpid()}}{more}"])
        time.sleep(60)
    """
STOPPING = "SIGTERM: stopping after this step, saving a checkpoint; press Ctrl-C to stop at once\n"


@pytest.mark.parametrize(
    ("busy", "grace", "more", "status", "words"),
    [
        (
            True, 0.01, "", 143,
            f"{STOPPING}resilience.grace_period = 0.01 s is over and the step has not ended: "
            "exiting without a checkpoint of it. The newest checkpoint is step-7\n",
        ),
        (
            True, 60, "; sleep 0.2; kill -INT {os.getpid()}", 130,
            f"{STOPPING}Ctrl-C: stopping at once, without a checkpoint of the last steps\n"
            "interrupted: the last steps are not saved. The newest checkpoint is step-7\n",
        ),
        (
            True, 60, "; sleep 0.3; kill -TERM {os.getpid()}", 143,
            f"{STOPPING}SIGTERM again: stopping at once, without a checkpoint of the last steps\n"
            "stopped by SIGTERM: the last steps are not saved. The newest checkpoint is step-7\n",
        ),
        (False, 60, "", 75, "SIGTERM: stopping at once\n"),
    ],
)  # fmt: skip
def test_a_thread_answers_while_the_main_one_cannot(
    busy: bool, grace: float, more: str, status: int, words: str
) -> None:
    assert ended(BLOCKED.format(busy=busy, grace=grace, more=more)) == (status, "", words)


MANY = """
    import os, resource, signal, time
    from setpoint.resilience.signals import StopRequest

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 1200), most))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    with StopRequest() as stop:
        stop.has_unsaved = True
        stop.watch()
        os.kill(os.getpid(), signal.SIGTERM)
        while stop._watcher.is_alive() and stop._since is None:
            time.sleep(0.01)
    """


def test_a_thread_answers_among_more_than_a_thousand_open_files() -> None:
    assert ended(MANY) == (0, "", STOPPING)


def test_inside_an_import_the_process_ends_without_an_exception(tmp_path: Path) -> None:
    """C++ libraries call Python while they are imported, and cannot pass an exception on."""
    (tmp_path / "heavy.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "except BaseException:\n    print('an exception')\n"
    )
    code = """
        from setpoint.resilience.signals import StopRequest
        stop = StopRequest()
        stop.owns_process = True
        print('before')
        with stop:
            import heavy
        """
    assert ended(code, tmp_path) == (130, "before\n", "interrupted\n")


def test_the_handlers_of_before_come_back() -> None:
    before = {number: signal.getsignal(number) for number in ALL}
    with pytest.raises(ValueError), StopRequest() as stop:
        stop.watch()
        assert all(signal.getsignal(number) != before[number] for number in before)
        raise ValueError
    assert {number: signal.getsignal(number) for number in before} == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_process_that_outlives_it_is_not_waited_for() -> None:
    """A data worker that hangs has both ends of its pipe, too."""
    with StopRequest() as stop:
        stop.watch()
        child = os.fork()
        if child == 0:
            time.sleep(10)
            os._exit(0)
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.parametrize("value", ["abc", "100 steps", "last_step", 5, 0.5, True, Length("0")])
def test_what_is_no_time_is_answered_with_times_alone(value: object) -> None:
    with pytest.raises(Invalid) as raised:
        TimeLimit.read(value)
    assert raised.value.valid == TIMES
    assert all(TimeLimit.read(each) for each in TIMES)


@pytest.mark.parametrize("value", ["90 min", Period("90 min"), Length("5400 s")])
def test_times_are_read_from_all_quantities(value: object) -> None:
    limit = TimeLimit.read(value)
    assert (limit.count, limit.unit, str(limit)) == (5400.0, "seconds", "90 min")
    assert TimeLimit.read(limit) is limit


def test_its_schema_takes_times_alone() -> None:
    pattern = re.compile(TimeLimit.__setpoint_json_schema__["pattern"])
    assert all(pattern.search(each) for each in (*TIMES, "1.5h"))
    assert not any(pattern.search(each) for each in ("100 steps", "last_step", "90", "abc"))
