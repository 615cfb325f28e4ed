"""One rank and its launcher: environment variables, signals and reports.

A rank reports its end in the error file of PyTorch's elastic agent, which runs under `--nproc` and
torchrun. Both show the first error once all ranks have ended.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.config import SetpointError, log_of, traceback_to_show
from setpoint.config.values.user_code import traceback_of

FOLDER = "SETPOINT_RANKS"
"""Variable with the folder for messages between ranks and their launcher."""
PREFIX = "setpoint-ranks-"
"""Of the name of that folder; the process of the launcher follows."""
REPORT = "TORCHELASTIC_ERROR_FILE"
"""Torch's variable that names the error file of a rank."""
OURS = "setpoint"
"""The key of an error file that holds an `Ended`; torch reads the others."""
PATIENCE = 5.0
"""Seconds that a rank waits for the report of another one on its machine."""
LAST_WORD = 1.0
"""Seconds that a rank gets after an error report to exit with its own status."""
_PR_SET_PDEATHSIG = 1
_WAITED = ("timed out", "wait timeout")

_entered: int | None = None


class Ended(NamedTuple):
    """The report of a rank.

    Arguments:
        status: its exit status.
        error: the message; empty if another rank reports the error, or the rank was stopped.
        is_lost: whether the rank ended because another rank did.
        traceback: shown before the error; may be empty.
        frames: the traceback with all frames, for the events of the run.
        log: the file that also contains the traceback.
    """

    rank: int
    status: int
    error: str = ""
    is_lost: bool = False
    time: float = 0.0
    traceback: str = ""
    frames: str = ""
    log: str = ""


Facts = Mapping[str, str]
NO_FACTS: Facts = {}


def launched() -> int:
    """Number of ranks started by a launcher such as torchrun; 1 without one."""
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdecimal() and "RANK" in os.environ else 1


def own_rank() -> int:
    """Rank of this process under a launcher; 0 without one."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() and int(rank) < launched() else 0


def require_launch(meets: bool = True) -> None:
    """Refuse contradictory launcher variables before ranks wait for each other.

    Arguments:
        meets: whether to check the address, too; False if PyTorch does so right away.

    Raises:
        SetpointError: names the variable and its valid values.
    """
    if "RANK" not in os.environ:
        return  # WORLD_SIZE alone is a configuration value, and refused as such
    both = "both (a launcher sets them for each process) or neither"
    if "WORLD_SIZE" not in os.environ:
        raise SetpointError(f"RANK = {os.environ['RANK']} without WORLD_SIZE.\nValid: {both}")
    size = _number("WORLD_SIZE", 1, None, "the number of all ranks")
    _number("RANK", 0, size, f"below WORLD_SIZE = {size}")
    local_size = size
    if "LOCAL_WORLD_SIZE" in os.environ:
        local_size = _number("LOCAL_WORLD_SIZE", 1, size + 1, f"at most WORLD_SIZE = {size}")
    if "LOCAL_RANK" in os.environ:
        name = "LOCAL_WORLD_SIZE" if "LOCAL_WORLD_SIZE" in os.environ else "WORLD_SIZE"
        _number("LOCAL_RANK", 0, local_size, f"below {name} = {local_size}")
    if size == 1 or not meets:
        return
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise SetpointError(
                f"{name} is not set, but WORLD_SIZE = {size}: ranks connect to MASTER_ADDR and "
                f"MASTER_PORT.\nValid: the host of rank 0 and a free port on it, the same on all "
                f"ranks; torchrun and `setpoint train ... --nproc` set them"
            )
    _number("MASTER_PORT", 1, 1 << 16, "a port on the host of rank 0")


def _number(name: str, least: int, end: int | None, meaning: str) -> int:
    """Read a launcher variable as an integer, at least `least` and below `end`."""
    text = os.environ[name]
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
    if number < least or (end is not None and number >= end):
        upper = "" if end is None else f" to {end - 1}"
        raise SetpointError(
            f"environment variable {name} = {text!r}.\nValid: an integer from {least}{upper}, "
            f"{meaning}"
        )
    return number


def launcher_process() -> int | None:
    """Process ID of Setpoint's launcher; None without one."""
    name = Path(os.environ.get(FOLDER, "")).name
    return process_of(name) if name else None


def process_of(folder: str) -> int | None:
    """Process ID of a launcher, from its folder's name."""
    number = folder.removeprefix(PREFIX).partition("-")[0]
    return int(number) if folder.startswith(PREFIX) and number.isdecimal() else None


def enter() -> None:
    """Register this rank with its launcher, and end when the launcher ends.

    Stop requests that arrived earlier are handled now. A second call has no effect.
    """
    global _entered
    named = os.environ.get(FOLDER)
    # With elastic nodes, a launcher may have a single rank.
    if (launched() == 1 and not named) or _entered == os.getpid():
        return
    _entered = os.getpid()
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):  # the C library lacks it; launchers end ranks, too
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if not named:
        return
    try:
        place, launcher = Path(named), launcher_process()
        _write(place / f"pid-{_local_rank()}", str(os.getpid()))
        if is_stop_requested(place):
            signal.raise_signal(requested_signal(place))
        if launcher is not None:
            os.kill(launcher, 0)
    except (ProcessLookupError, FileNotFoundError):
        # It ended before this rank was registered, and its successor has removed its folder.
        signal.raise_signal(signal.SIGTERM)


def leave(
    status: int,
    error: str = "",
    is_lost: bool = False,
    more: Facts = NO_FACTS,
    instead: bool = False,
) -> bool:
    """Report the end of this rank; only the first error counts.

    Arguments:
        more: `traceback`, `frames` and `log` of `Ended`.
        instead: whether to replace any earlier report.

    Returns:
        whether a launcher shows the report.
    """
    path = _report()
    if path is None:
        return False
    import json  # not needed by `check`

    before = _read(path)
    if before is not None and not instead and (before.error or not error):
        return True
    ended = Ended(own_rank(), status, error, is_lost, time.time(), **more)
    text = error or (
        f"exit status {status}; another rank reports the reason, or a signal stopped this one"
    )
    stack = "\n".join(part for part in (ended.traceback, text) if part)
    # PyTorch takes the report with the earliest second as the cause.
    second = int(ended.time) + (is_lost or not error)
    message = {"message": text, "extraInfo": {"timestamp": str(second), "py_callstack": stack}}
    try:
        _write(path, json.dumps({"message": message, OURS: ended._asdict()}))
    except OSError:
        return False
    return True


def facts_of(error: BaseException) -> Facts:
    """The `traceback`, `frames` and `log` of an error, for `leave`."""
    return {
        "traceback": traceback_to_show(error),
        "frames": traceback_of(error, whole=True),
        "log": log_of(error),
    }


def reports_in(folder: Path) -> list[Ended]:
    """The reports of this machine's ranks, the first rank to fail before the others.

    Arguments:
        folder: the elastic agent's folder for an attempt, with a folder for each rank.
    """
    reports = [_read(path) for path in folder.glob("*/error.json")]
    return sorted(
        (report for report in reports if report is not None),
        key=lambda report: (not report.error, report.is_lost, report.time),
    )


def has_left_error() -> bool:
    """True if this rank reported an error, which its launcher shows."""
    path = _report()
    report = None if path is None else _read(path)
    return report is not None and bool(report.error)


def first_failure() -> Ended | None:
    """Report of another rank of this machine that failed first; None if there is none."""
    failed = (report for report in _reports() if report.error and not report.is_lost)
    return next((report for report in failed if report.rank != own_rank()), None)


def is_timeout(error: str) -> bool:
    """True if a rank lost others through a timeout, not because they ended."""
    return any(words in error.lower() for words in _WAITED)


def is_reported_first(error: str) -> bool:
    """True if the first rank of this machine, also started by torchrun, reports the same error.

    Each rank refuses an invalid configuration separately.
    """
    local = _local_rank()
    if _report() is None or FOLDER in os.environ or local == "0" or not local.isdecimal():
        return False  # Setpoint's launcher shows one error
    first = own_rank() - int(local)
    first_report = _await_report(lambda report: report.rank == first)
    return first_report is not None and first_report.error == error


def end_after_first() -> None:
    """Wait for the first rank to end, because torchrun ends all ranks once one has ended."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(LAST_WORD)


def wait_until_reported() -> None:
    """Wait until the main rank has reported the error that it sent to this rank.

    The launcher, or torchrun, ends all ranks as soon as one has ended.
    """
    if _report() is not None and _local_rank() == str(own_rank()):  # on this machine
        _await_report(lambda report: bool(report.error))


def ask(place: Path, number: int) -> None:
    """Forward a signal to the ranks; a stop goes to all, including those that are still starting.

    SIGUSR2 goes to one rank, which informs the others in the same step. Sent to all ranks, it would
    arrive at different times, on some of them after the saved step.
    """
    if number != signal.SIGUSR2:
        _write(place / "signal", str(number))
    for note in sorted(place.glob("pid-*")):
        with suppress(ProcessLookupError):
            os.kill(int(note.read_text()), number)
            if number == signal.SIGUSR2:
                return


def is_stop_requested(place: Path) -> bool:
    """True if the ranks were asked to stop."""
    return (place / "signal").exists()


def requested_signal(place: Path) -> int:
    """The signal that asked the ranks to stop."""
    return int((place / "signal").read_text())


def _await_report(matches: Callable[[Ended], bool]) -> Ended | None:
    """Wait for a report; None on a timeout."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        for report in _reports():
            if matches(report):
                return report
        time.sleep(0.02)
    return None


def _reports() -> list[Ended]:
    path = _report()
    return [] if path is None else reports_in(path.parent.parent)


def _report() -> Path | None:
    """This rank's error file; None if no elastic agent started the rank."""
    name = os.environ.get(REPORT)
    return Path(name) if name and "RANK" in os.environ else None


def _read(path: Path) -> Ended | None:
    """Read a report; None if there is none, or it was not written by Setpoint."""
    import json

    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Ended(**content[OURS]) if isinstance(content, dict) and OURS in content else None


def _write(note: Path, text: str) -> None:
    """Write a message atomically, since it may be read, and this process killed, at any time."""
    new = note.with_name(f".{note.name}")
    new.write_text(text, encoding="utf-8")
    new.replace(note)


def _local_rank() -> str:
    """Rank of this process on its machine."""
    return os.environ.get("LOCAL_RANK", str(own_rank()))
