"""Stops: effects of Ctrl-C (SIGINT), SIGTERM, SIGUSR1 and SIGHUP in every phase; SIGUSR2.

If nothing would be lost, a command exits immediately. If some steps are not in a checkpoint yet,
the current step is finished and saved first. Python runs signal handlers only between two of its
instructions, but a step or a compilation may take minutes, so a thread receives signals
immediately, prints the consequences, and enforces the grace period. SIGUSR2 requests a checkpoint,
after which the run continues; other commands ignore it.

One request may reach a process several times (directly, and from a launcher), and the ranks of a
job at different times, even after the other ranks have agreed on it. The agreement of all ranks
counts as the answer to each rank's request, whenever its own signal arrives.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

INTERRUPTED, PREEMPTED, TERMINATED = 130, 75, 143
PREEMPT = signal.SIGUSR1
"""Preemption notice of schedulers, such as Slurm with `--signal=USR1@120`."""
NAMES = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP",
    PREEMPT: "SIGUSR1",
}
SAVE = signal.SIGUSR2
REPEATED = 2.0
"""Seconds within which one more signal of the same kind is taken for the same one: launchers pass
on what the process group has got already, and ranks of several machines get it one by one."""
UNWINDING = 5.0
"""Seconds for the main thread to exit if it has nothing to finish."""
LOOK = 0.2
"""Polling interval of the clock after a stop request, in seconds."""

_active: StopRequest | None = None


class Stopped(KeyboardInterrupt):
    """Raised in the main thread when a signal ends its work.

    Arguments:
        lost: True if steps are lost because no checkpoint contains them.
        outlook: explanation of the consequences; may be empty.
        cause: cause of the stop; the signal if empty.
    """

    def __init__(
        self, number: int, status: int, lost: bool, outlook: str = "", cause: str = ""
    ) -> None:
        super().__init__()
        self.cause = cause or named(number)
        self.number, self.status, self.lost, self.outlook = number, status, lost, outlook

    def __str__(self) -> str:
        how = "interrupted" if self.number == signal.SIGINT else f"stopped by {self.cause}"
        return f"{how}: {self.outlook}" if self.outlook else how


class Abandoned(Exception):
    """Raised by `StopRequest.check` to abandon repeatable work after a stop request."""


class StopRequest:
    """Stop requests to a process, and its exit.

    Inside a `with` block, SIGTERM, SIGUSR1 and SIGHUP request a stop as preemption, SIGINT (Ctrl-C)
    as an interruption. Without unsaved steps, the first signal raises `Stopped`. Otherwise, Ctrl-C
    after an earlier signal raises it, as does another signal repeated after `REPEATED` seconds,
    unless a checkpoint is being saved. The previous handlers are restored at the end; ignored
    signals, as under `nohup`, stay ignored. A nested block of the same object has no effect. Python
    installs handlers only in the main thread; in other threads, `is_deaf` is True, and `request` is
    the only way to stop.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.reason: str | None = None
        """Cause other than a signal, in words; None without one."""
        self.is_deaf = False
        self.has_unsaved = False
        """True while there are steps that no checkpoint has."""
        self.defers = False
        """True if the current step is always finished, as other ranks wait for this one."""
        self.saving = False
        """True while a checkpoint is being saved; the grace period does not interrupt it."""
        self.writing: Callable[[], bool] = lambda: False
        """True while one is being written in the background, which is not interrupted either."""
        self.keeps = True
        """True if the run saves checkpoints, so that a stop in the middle of training saves one."""
        self.resumable = False
        """True if the same command resumes later without a loss: SIGTERM gives status 75 then."""
        self.owns_process = False
        """True in a process of the command line, which may exit immediately."""
        self.began: float | None = None
        """Start of that process, in seconds since 1970; None elsewhere."""
        self.grace = float("inf")
        """Seconds from a signal to the end of the step."""
        self.newest: Callable[[], str] = lambda: ""
        """Names the newest checkpoint in words."""
        self.outlook: Callable[[], str] = lambda: ""
        """Describes a stop without unsaved steps: the progress, and the command to resume."""
        self.limits: Any = None
        """Its `SessionLimits`, which may ask for a stop; closed with the outermost block."""
        self._before: dict[int, Any] = {}
        self._depth = 0
        self._pipe: tuple[int, int] | None = None
        self._wakeup = -1
        self._watcher: Any = None
        self._first: int | None = None
        self._since: float | None = None
        # The signal after which nothing is waited for.
        self._forced: int | None = None
        self._is_announced = False
        # Whether all ranks stop for the same request, and whether the step has ended after it.
        self._agreed = self._answered = False
        # Times of the last SIGUSR2, and of the last agreement on a save.
        self._save_asked = self._save_answered = float("-inf")
        # Times of the first signal, in the main thread and in the receiving thread.
        self._handled: dict[int, float] = {}
        self._announced_at: dict[int, float] = {}

    @property
    def cause(self) -> str:
        """Cause of the stop as text; empty without a request."""
        return "" if self.signal is None else self._cause_of(self.signal)

    @property
    def saves_now(self) -> bool:
        """True if a checkpoint must be saved after the current step, and training continues."""
        return self._save_asked > self._save_answered

    @property
    def requested(self) -> bool:
        """True if the run must stop after the current step."""
        return self.signal is not None

    @property
    def status(self) -> int:
        """Exit status of an orderly stop: 0 without a request, 130 for Ctrl-C, else 75."""
        return 0 if self.signal is None else self.status_of(self.signal, lost=False)

    def status_of(self, number: int, lost: bool) -> int:
        """Exit status after a signal: 130 for Ctrl-C, 75 if the same command resumes, else 143."""
        if number == signal.SIGINT:
            return INTERRUPTED
        return PREEMPTED if self.resumable and not lost else TERMINATED

    def consequences(self) -> str:
        """Describe what an immediate stop would lose; empty if that is unknown."""
        if not self.has_unsaved:
            return self.outlook()
        newest = self.newest()
        return f"the last steps are not saved. {newest}" if newest else ""

    def request(self, number: int = signal.SIGTERM) -> None:
        """Request a stop with a checkpoint after the current step; callable from any thread."""
        if self.signal is None:
            self.signal = number

    def ask(self, reason: str) -> None:
        """Preempt the run as a signal would, for another reason; callable from any thread."""
        if self.signal is not None:
            return
        self.reason = reason
        if PREEMPT in self._before:
            os.kill(os.getpid(), PREEMPT)
        else:
            self.request(PREEMPT)

    def agree(self, number: int, reason: str | None) -> None:
        """Stop for the request agreed on by all ranks, even before this rank's own signal.

        Arguments:
            number, reason: `signal` and `reason` of the rank that received the request.
        """
        self._agreed, self.signal, self.reason = True, number, reason

    def answer(self) -> None:
        """Record the end of the step, after which the grace period no longer applies."""
        self._since, self._answered = None, self.requested

    def answer_save(self) -> None:
        """Record that all ranks save after this step, which answers all SIGUSR2 so far.

        A signal within the next `REPEATED` seconds also counts as answered.
        """
        self._save_answered = time.monotonic()

    def check(self) -> None:
        """Abandon repeatable work, such as an evaluation.

        Raises:
            Abandoned: a stop was requested.
        """
        if self.requested:
            raise Abandoned

    def watch(self) -> None:
        """Start the thread that receives signals during long operations of the main thread.

        Has no effect if the thread is running, or if no handlers could be installed.
        """
        if self._pipe is not None or not self._before:
            return
        from threading import Thread

        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._watcher = Thread(target=self._watch, args=(self._pipe[0],), daemon=True)
        self._watcher.start()

    def __enter__(self) -> StopRequest:
        global _active
        self._depth += 1
        if self._depth > 1 or self.is_deaf:
            return self
        try:
            for number in (*NAMES, SAVE):
                if signal.getsignal(number) != signal.SIG_IGN:
                    answer = self._ask_save if number == SAVE else self._handle
                    self._before[number] = signal.signal(number, answer)
        except ValueError:
            self.is_deaf = True
        else:
            _active = self
        return self

    def __exit__(self, *exc: object) -> None:
        global _active
        self._depth -= 1
        # All work to finish is done, or has failed.
        self._since, self.has_unsaved, self.saving, self.defers = None, False, False, False
        if self._depth:
            return
        if _active is self:
            _active = None
        if self.limits is not None:
            self.limits.close()
            self.limits = None
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if self._pipe is not None:
            signal.set_wakeup_fd(self._wakeup)
            reading, writing = self._pipe
            # Not a signal number. Closing this end would not suffice: processes forked since then
            # have it as well, and may live longer.
            os.write(writing, b"\0")
            self._watcher.join()
            os.close(writing)
            os.close(reading)
            self._pipe = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal in the main thread."""
        if self._agreed and not self._handled:
            self._is_repeated(self._handled, number)
            return  # all ranks already stop for the first signal here
        is_repeat = self.signal is not None
        if not is_repeat:
            self.signal = number
        insists = self._is_repeated(self._handled, number) or number == signal.SIGINT
        if (is_repeat and not insists) or (self._finishes and not is_repeat):
            return
        stopped = self._stopped(number)
        if self.owns_process and _is_importing(frame):
            # An exception inside the initialization of a C++ library ends in std::terminate.
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, RuntimeError, AttributeError):
                    stream.flush()
            _print(str(stopped))
            self._leave(stopped.status)
        raise stopped

    def _stopped(self, number: int) -> Stopped:
        """The end of the work by a signal that does not wait."""
        lost = self.has_unsaved
        status = self.status_of(number, lost)
        return Stopped(number, status, lost, self.consequences(), self._cause_of(number))

    def _ask_save(self, number: int, frame: FrameType | None) -> None:
        if self._pipe is None:  # otherwise the thread does, which has its time
            self._handle_save()

    def _handle_save(self) -> str:
        """Handle a request for a checkpoint, and return the message about it."""
        now = time.monotonic()
        if now - self._save_answered < REPEATED:
            return "SIGUSR2 again: the checkpoint already requested covers this request as well"
        is_new, self._save_asked = not self.saves_now, now
        return "SIGUSR2: saving a checkpoint after this step, then continuing" if is_new else ""

    def _watch(self, reading: int) -> None:
        """Receive signals, in a separate thread."""
        import select

        poller = select.poll()  # `select.select` takes no descriptor beyond 1023
        poller.register(reading, select.POLLIN)
        while True:
            if not poller.poll(None if self._since is None else 1000 * LOOK):
                self._keep_time()
                continue
            for number in os.read(reading, 64):
                if not number:
                    return
                if number in NAMES:
                    self._announce(number)
                elif number == SAVE and (message := self._handle_save()) and self.keeps:
                    _print(message)

    def _announce(self, number: int) -> None:
        """Print the effect of a signal."""
        if self._first is None:
            self._first = number
            # If there is nothing to finish, the main thread is about to report its exit.
            self._is_announced = self._finishes
            self._is_repeated(self._announced_at, number)
            if self._answered:
                return  # the request is being handled, or has been
            self._since = time.monotonic()
            if self._finishes:
                _print(f"{self._cause_of(number)}: {self._stop_text()}")
        elif number == signal.SIGINT or self._is_repeated(self._announced_at, number):
            self._forced, self._since = number, time.monotonic()
            if self.has_unsaved:
                again = "" if number == signal.SIGINT else " again"
                _print(
                    f"{named(number)}{again}: stopping at once, without a checkpoint of the last "
                    f"steps"
                )

    def _cause_of(self, number: int) -> str:
        """Cause of a stop by a signal, which may stand for another reason."""
        return self.reason if self.reason is not None and number == PREEMPT else named(number)

    def _is_repeated(self, first_times: dict[int, float], number: int) -> bool:
        """True if a repeated signal asks for an immediate exit.

        A signal of another kind does not: Slurm sends a notice before SIGTERM.
        """
        now = time.monotonic()
        late = now - first_times.setdefault(number, now) >= REPEATED
        return late and not (self.saving or self.writing())

    @property
    def _finishes(self) -> bool:
        """True if a stop waits for the end of the step."""
        return self.has_unsaved or self.defers

    def _stop_text(self) -> str:
        saving = "when this checkpoint is saved"
        step = "after this step" + (", saving a checkpoint" if self.keeps else "")
        moment = saving if self.saving else step
        more = "again " if self._first == signal.SIGINT else ""
        return f"stopping {moment}; press Ctrl-C {more}to stop at once"

    def _keep_time(self) -> None:
        """Exit the process if the main thread has not left in time."""
        # The main thread may exit normally meanwhile, and reset both.
        since, first = self._since, self._first
        if since is None or first is None:
            return
        if not self._is_announced:
            self._is_announced = True
            outlook = "" if self.has_unsaved else self.outlook()
            _print(
                f"{self._cause_of(first)}: stopping at once" + (f": {outlook}" if outlook else "")
            )
        waited = time.monotonic() - since
        finishing = self._finishes and self._forced is None
        if finishing:
            if waited < self.grace or self.saving or self.writing():
                return
            _print(
                f"resilience.grace_period = {self.grace:g} s is over and the step has not ended: "
                f"exiting without a checkpoint of it. {self.newest()}"
            )
        elif waited < UNWINDING or not (self._forced or self.owns_process):
            return
        elif self.has_unsaved:
            _print(str(self._stopped(self._forced or first)))
        if self._since is not None:
            self._leave(self.status_of(self._forced or first, lost=self.has_unsaved))

    def _leave(self, status: int) -> None:
        """Exit immediately; the files written need no cleanup."""
        with suppress(OSError):
            if os.isatty(1):
                os.write(1, b"\x1b[?25h")  # the cursor, hidden by a progress bar
        os._exit(status)


def active() -> StopRequest | None:
    """The request with installed handlers; None outside of blocks, and in other threads."""
    import threading

    return _active if threading.current_thread() is threading.main_thread() else None


def named(number: int) -> str:
    """User-readable name of a signal, such as `Ctrl-C` or `SIGTERM`."""
    known = signal.Signals(number)
    return NAMES.get(known, known.name)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _print(text: str) -> None:
    """Print a line, bypassing all buffers and locks, which the main thread may hold."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())
