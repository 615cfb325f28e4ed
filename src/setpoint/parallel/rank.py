"""A rank of `setpoint train --nproc`, as the process that started it sees it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from setpoint.config import SetpointError

FOLDER = "SETPOINT_RANKS"
"""The variable that names the folder where ranks and their launcher leave notes for each other."""
PATIENCE = 5.0
"""Seconds that a rank waits for what the first of its machine says."""
LAST_WORD = 0.5
"""Seconds in which a rank prints what it has left in a file."""
_PR_SET_PDEATHSIG = 1
_WAITED = ("timed out", "wait timeout")

_entered: int | None = None


class Ended(NamedTuple):
    """How a rank has ended.

    Arguments:
        status: its exit status.
        error: what it says of it; empty where it was told by another rank.
        is_lost: whether it ended because another rank had.
        traceback: what is shown before the error; empty where nothing is.
        frames: the traceback with all frames, for the events of the run.
        log: the file that has it as well.
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
    """How many ranks a launcher such as torchrun has started; 1 without one."""
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdecimal() and "RANK" in os.environ else 1


def own_rank() -> int:
    """The number of this process among those of a launcher; 0 without one."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() and int(rank) < launched() else 0


def require_launch(meets: bool = True) -> None:
    """Refuse variables of a launcher that contradict each other, before ranks wait to meet.

    Arguments:
        meets: whether the address is looked at, too; False where torch does that at once.

    Raises:
        SetpointError: naming the variable, and what it may be.
    """
    if "RANK" not in os.environ:
        return  # WORLD_SIZE alone is a value of the configuration, and refused as that
    both = "both, as a launcher sets them for each process, or neither"
    if "WORLD_SIZE" not in os.environ:
        raise SetpointError(f"RANK = {os.environ['RANK']} without WORLD_SIZE.\nValid: {both}")
    size = _number("WORLD_SIZE", 1, None, "the number of all ranks")
    _number("RANK", 0, size, f"below WORLD_SIZE = {size}")
    here = size
    if "LOCAL_WORLD_SIZE" in os.environ:
        here = _number("LOCAL_WORLD_SIZE", 1, size + 1, f"at most WORLD_SIZE = {size}")
    if "LOCAL_RANK" in os.environ:
        name = "LOCAL_WORLD_SIZE" if "LOCAL_WORLD_SIZE" in os.environ else "WORLD_SIZE"
        _number("LOCAL_RANK", 0, here, f"below {name} = {here}")
    if size == 1 or not meets:
        return
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise SetpointError(
                f"{name} is not set, and WORLD_SIZE = {size}: ranks meet at MASTER_ADDR and "
                f"MASTER_PORT.\nValid: the host of rank 0 and a free port of it, the same on all "
                f"ranks; torchrun and `setpoint train ... --nproc` set them"
            )
    _number("MASTER_PORT", 1, 1 << 16, "a port of the host of rank 0")


def _number(name: str, least: int, end: int | None, what: str) -> int:
    """A variable of a launcher that is a whole number from `least` on and below `end`."""
    text = os.environ[name]
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
    if number < least or (end is not None and number >= end):
        upper = "" if end is None else f" to {end - 1}"
        raise SetpointError(
            f"environment variable {name} = {text!r}.\nValid: a whole number from {least}{upper}, "
            f"{what}"
        )
    return number


def launcher_process() -> int | None:
    """The process that has started this rank with others; None without one of ours."""
    place = _place()
    if place is None:
        return None
    with suppress(OSError, ValueError):
        return int((place / "launcher").read_text())
    return None


def enter() -> None:
    """Let the launcher reach this rank, which ends with it: no rank is ever left behind.

    Stops that were asked for before are answered now. A second call changes nothing.
    """
    global _entered
    named = os.environ.get(FOLDER)
    # A launcher whose nodes come and go may have one rank left.
    if (launched() == 1 and not named) or _entered == os.getpid():
        return
    _entered = os.getpid()
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):  # a C library without it: launchers end ranks, too
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if not named:
        return
    try:
        _take_place(Path(named))
    except (ProcessLookupError, FileNotFoundError):
        # It had ended before this rank could hear of it, and the next one has removed its folder.
        signal.raise_signal(signal.SIGTERM)


def _take_place(place: Path) -> None:
    """Let the launcher find this rank, and see that it is there.

    Raises:
        FileNotFoundError: its folder is gone.
        ProcessLookupError: it has ended.
    """
    # Ranks that start again overwrite what those before them have left, whatever their numbers are.
    local = _local()
    (place / f"ended-{local}").unlink(missing_ok=True)
    _write(place / f"pid-{local}", str(os.getpid()))
    _write(place / f"local-{local}", str(own_rank()))
    asked = place / "signal"
    if asked.exists():
        signal.raise_signal(int(asked.read_text()))
    os.kill(int((place / "launcher").read_text()), 0)


def leave(status: int, error: str = "", is_lost: bool = False, more: Facts = NO_FACTS) -> bool:
    """Leave a note of how this rank ends.

    Arguments:
        more: `traceback`, `frames` and `log` of `Ended`.

    Returns:
        whether a launcher of ours reads it, which says what is to be said then.
    """
    place, report = _place(), os.environ.get("TORCHELASTIC_ERROR_FILE")
    if launched() == 1 and place is None:
        return False
    import json  # which `check` has no use for

    ended = Ended(own_rank(), status, error, is_lost, time.time(), **more)
    if place is None:
        if error and report and not os.path.exists(report):
            # In the form that torchrun shows the first error of.
            stack = "\n".join(text for text in (ended.traceback, error) if text)
            extra = {"timestamp": str(int(ended.time)), "py_callstack": stack}
            with suppress(OSError), open(report, "w", encoding="utf-8") as file:
                json.dump({"message": {"message": error, "extraInfo": extra}}, file)
        return False
    note = place / f"ended-{_local()}"
    if error or not note.exists():  # what was said first counts
        with suppress(OSError):
            _write(note, json.dumps(ended._asdict()))
    return True


def has_left_error() -> bool:
    """Whether this rank has left an error to its launcher, which prints it."""
    place = _place()
    note = None if place is None else place / f"ended-{_local()}"
    if note is None or not note.exists():
        return False
    import json

    return bool(json.loads(note.read_text())["error"])


def first_failure() -> Ended | None:
    """How another rank of this machine failed by itself; None: none is known."""
    place = _place()
    ends = [] if place is None else endings(place)
    failed = (each for each in ends if each.error and not each.is_lost)
    return next((each for each in failed if each.rank != own_rank()), None)


def has_waited(error: str) -> bool:
    """Whether a rank has lost others that did not answer in time, rather than ended."""
    return any(sign in error.lower() for sign in _WAITED)


def is_said_first(error: str) -> bool:
    """Whether the first rank of this machine, which torchrun has started too, says the same.

    All of them are refused what is wrong with a configuration, each for itself.
    """
    report = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not report or os.environ.get("LOCAL_RANK", "0") == "0":
        return False
    import json

    first = _report_of_first(report)
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        with suppress(OSError, ValueError):  # not there, or half written
            said = json.loads(first.read_text())["message"]["message"] == error
            # torchrun ends all ranks as soon as one has ended: let it be the one that speaks.
            time.sleep(LAST_WORD)
            return said
        time.sleep(0.02)
    return False


def wait_until_said() -> None:
    """Let a rank of this machine say what it was refused, of which this one has heard.

    Its launcher, or torchrun, ends all ranks as soon as one has ended.
    """
    place, report = _place(), os.environ.get("TORCHELASTIC_ERROR_FILE")
    if (place is None and not report) or _local() != str(own_rank()):
        return  # nobody ends them, or the main rank is on another machine
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        if place is not None and any(each.error for each in endings(place)):
            return
        if place is None and report and _report_of_first(report).exists():
            time.sleep(LAST_WORD)
            return
        time.sleep(0.02)


def ask(place: Path, number: int) -> None:
    """Forward a signal to the ranks: a stop to all, to those that are still starting as well.

    SIGUSR2 goes to one, from which the others hear in the same step: it would reach each of them at
    a moment of its own, and some in a step after that which is saved.
    """
    if number != signal.SIGUSR2:
        _write(place / "signal", str(number))
    for note in sorted(place.glob("pid-*")):
        with suppress(ProcessLookupError):
            os.kill(int(note.read_text()), number)
            if number == signal.SIGUSR2:
                return


def was_asked(place: Path) -> bool:
    """Whether the ranks were asked to stop."""
    return (place / "signal").exists()


def ranks_here(place: Path) -> dict[int, int]:
    """The ranks of this machine that have started, by their number on it."""
    found = {note: note.read_text() for note in place.glob("local-*")}
    return {int(note.name[6:]): int(text) for note, text in found.items() if text}


def endings(place: Path) -> list[Ended]:
    """How the ranks have ended, the first to fail before the others."""
    import json

    found = [Ended(**json.loads(note.read_text())) for note in place.glob("ended-*")]
    return sorted(found, key=lambda each: (not each.error, each.is_lost, each.time))


def _write(note: Path, text: str) -> None:
    """Write a note that others read, or that a rank does which is ended by force: whole or not."""
    new = note.with_name(f".{note.name}")
    new.write_text(text)
    new.replace(note)


def _report_of_first(report: str) -> Path:
    """Where torchrun looks for the error of the first rank of this machine, by that of another."""
    return Path(report).parent.parent / "0" / Path(report).name


def _local() -> str:
    """The number of this rank on its machine."""
    return os.environ.get("LOCAL_RANK", str(own_rank()))


def _place() -> Path | None:
    name = os.environ.get(FOLDER)
    return Path(name) if name and os.path.isdir(name) else None
