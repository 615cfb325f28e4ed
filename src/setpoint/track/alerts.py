"""Alerts: what happens to a run, sent to others by threads of their own."""

from __future__ import annotations

import json
import math
import os
import queue
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from setpoint.config import SetpointError

from .console import now
from .redact import without_secrets

if TYPE_CHECKING:
    from .config import AlertConfig, Command, Webhook

WAITING = 100
"""Alerts that may wait to be sent; further ones are dropped."""
BACKOFF = 1.0
"""Seconds before the first retry; each waits twice as long as the one before."""

GRACE = 1.0
"""Seconds that the end of a run waits beyond the time that sending may take."""

Facts = dict[str, Any]


class Alert(Protocol):
    """Sends facts; what it raises is shown."""

    longest: float
    """Seconds that sending takes at most."""

    def send(self, facts: Facts, ended: threading.Event) -> None:
        """Send; `ended` breaks off waiting."""
        ...


class PostJson:
    """Posts JSON to a URL.

    Raises:
        SetpointError: the URL, or the value of a header, is not where the section says, or it is
            no HTTP address.
    """

    def __init__(self, config: Webhook) -> None:
        self.config = config
        self.url = config.url.reveal()
        if not self.url.startswith(("http://", "https://")):
            raise SetpointError(
                f"tracking.alerts: what {config.url.dump()} holds is not a URL (it is not shown)."
                "\nValid: http://... or https://..."
            )
        self.headers = {name: value.reveal() for name, value in config.headers.items()}
        waits = BACKOFF * (2**config.retries - 1)
        self.longest = config.timeout * (config.retries + 1) + waits

    def send(self, facts: Facts, ended: threading.Event) -> None:
        """Post, and try again where the server cannot be reached or is at fault."""
        body = {key: filled(text, facts) for key, text in self.config.body.items()} or facts
        headers = {"Content-Type": "application/json", **self.headers}
        data = json.dumps(body, default=str).encode()
        for attempt in range(self.config.retries + 1):
            try:
                request = urllib.request.Request(self.url, data, headers, method="POST")
                with urllib.request.urlopen(request, timeout=self.config.timeout):
                    return
            except (OSError, ValueError) as error:
                status = getattr(error, "code", None)
                refused = isinstance(status, int) and 400 <= status < 500 and status != 429
                if refused or attempt == self.config.retries:
                    raise RuntimeError(self._reason(error)) from None
            if ended.wait(BACKOFF * 2**attempt):
                return

    def _reason(self, error: Exception) -> str:
        """What went wrong, without the address."""
        hidden = (self.url, *self.headers.values())
        text = str(getattr(error, "reason", None) or error)
        if isinstance(error, urllib.error.HTTPError):
            text = f"the server answers {error.code} {error.reason}"
        for secret in hidden:
            text = text.replace(secret, "***")
        return text


class RunProgram:
    """Runs a program.

    Raises:
        SetpointError: if it is not there.
    """

    def __init__(self, config: Command) -> None:
        self.config, self.longest = config, config.timeout
        if shutil.which(config.command[0]) is None:
            raise SetpointError(
                f"tracking.alerts: there is no program {config.command[0]}.\nValid: a program of "
                f"the PATH, the path of one that may be executed, or no such alert"
            )

    def send(self, facts: Facts, ended: threading.Event) -> None:
        """Run it, and end it when its time is over."""
        names = {f"SETPOINT_ALERT_{key.upper()}": str(value) for key, value in facts.items()}
        try:
            done = subprocess.run(
                self.config.command,
                input=json.dumps(facts, default=str).encode(),
                env={**os.environ, **names},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self.config.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            took = f"{self.config.timeout:g} s"
            raise RuntimeError(f"{self.config.command[0]} took longer than {took}") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            said = f": {lines[-1][:200]}" if lines else ""
            raise RuntimeError(f"{self.config.command[0]} exits {done.returncode}{said}")


def filled(text: str, facts: Facts) -> str:
    """Put facts into a text for `{name}`; other braces stay."""
    return re.sub(r"\{(\w+)\}", lambda m: str(facts.get(m[1], m[0])), text)


class Alerts:
    """All alerts of a run, on its main rank; nothing of it waits but its end, for a bounded time.

    Leaving it by an error is a failure, by Ctrl-C a stop.

    Arguments:
        sections: of the alerts.
        run: the run directory.
        facts: that go with each message.
        note: shows a line to people; it is called by the thread that trains.

    Raises:
        SetpointError: one cannot be built.
    """

    def __init__(
        self,
        sections: Sequence[AlertConfig],
        run: Path,
        facts: Facts,
        note: Callable[[str], None],
    ) -> None:
        self.facts = {**facts, "directory": str(run.absolute()), "host": socket.gethostname()}
        self.note = note
        self.step: int | None = None
        self.loss: float | None = None
        self.status: int | None = None
        self.reason = ""
        self._lines: deque[str] = deque()
        self._senders = [
            _Sender(index, section, section.build(), self._lines.append)
            for index, section in enumerate(sections)
        ]
        self._progressed: float | None = None
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look, name="setpoint-stalls", daemon=True)

    def __enter__(self) -> Self:
        for sender in self._senders:
            sender.thread.start()
        if self._senders:
            self._watch.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        if isinstance(error, KeyboardInterrupt):
            self.send("stopped", "interrupted")
        elif error is not None:
            self.send("failed", str(error).strip() or type(error).__name__)
        elif self.status == 0:
            self.send("finished", self.reason or "the duration is over")
        elif self.status is not None:
            self.send("stopped", self.reason or "stopped, to be gone on with later")
        longest = max((each.alert.longest for each in self._senders), default=0.0)
        end = time.monotonic() + longest + GRACE
        for sender in self._senders:
            sender.close(max(0.0, end - time.monotonic()))
        self._show()

    def progressed(self, step: int, loss: float | None = None) -> None:
        """Hear that a step has ended, or that the loop begins."""
        self.step, self.loss = step, loss if loss is not None else self.loss
        self._progressed = time.monotonic()
        for sender in self._senders:
            sender.has_stalled = False
        self._show()

    def heard(self, event: str, details: dict[str, Any]) -> None:
        """Hear of an event of the run."""
        if event == "end":
            self.status, self.reason = details["status"], details.get("reason", "")
            self.step = details["step"]
        elif event in ("skip", "rollback"):
            step = details["failed"] if event == "rollback" else details["step"]
            what = "was skipped" if event == "skip" else f"rolled back to step {details['step']}"
            figures = f"loss {details['loss']}, gradient norm {details['grad_norm']}"
            self.step = step
            self.send(details["cause"], f"step {step} {what}: {figures}")

    def send(self, event: str, message: str, only: _Sender | None = None) -> None:
        """Hand a message to those who want it."""
        facts = {
            "event": event,
            **self.facts,
            "time": now(),
            "step": self.step,
            "loss": _plain(self.loss),
            "message": message,
        }
        for sender in self._senders if only is None else [only]:
            if event in sender.section.events:
                sender.put(without_secrets(facts))

    def _look(self) -> None:
        shortest = min(sender.section.stalled_after for sender in self._senders)
        while not self._ended.wait(min(shortest / 4, 5.0)):
            if self._progressed is None:
                continue
            since = time.monotonic() - self._progressed
            for sender in self._senders:
                if since > sender.section.stalled_after and not sender.has_stalled:
                    sender.has_stalled = True
                    self.send("stalled", f"no step has ended for {since:.0f} s", sender)

    def _show(self) -> None:
        while self._lines:
            self.note(self._lines.popleft())


def _plain(loss: float | None) -> float | str | None:
    """A number that JSON has, else its text."""
    return loss if loss is None or math.isfinite(loss) else str(loss)


class _Sender:
    """One alert with its thread."""

    def __init__(
        self, index: int, section: AlertConfig, alert: Alert, say: Callable[[str], None]
    ) -> None:
        self.section, self.alert, self.say = section, alert, say
        self.name = f"tracking.alerts.{index} ({type(section).__setpoint__.tag})"
        self.has_stalled = False
        self.failures = 0
        self.tasks: queue.Queue[Facts | None] = queue.Queue(WAITING)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._work, name=self.name, daemon=True)

    def put(self, facts: Facts) -> None:
        try:
            self.tasks.put_nowait(facts)
        except queue.Full:
            self._failed("too many wait to be sent, and further ones are dropped")

    def close(self, seconds: float) -> None:
        """Wait for what is left, and say what was not sent."""
        try:
            self.tasks.put_nowait(None)
        except queue.Full:
            self.ended.set()
        self.thread.join(seconds)
        if self.thread.is_alive():
            self.ended.set()
            self.say(f"{self.name} could not be sent within {seconds:.0f} s")

    def _work(self) -> None:
        while (facts := self.tasks.get()) is not None and not self.ended.is_set():
            try:
                self.alert.send(facts, self.ended)
            # Whatever goes wrong, it is no reason to stop a run.
            except Exception as error:
                self._failed(str(error))

    def _failed(self, reason: str) -> None:
        self.failures += 1
        if self.failures == 1:
            self.say(f"{self.name} could not be sent: {reason}; training goes on")
