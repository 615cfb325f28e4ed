"""Alerts: messages about a run that a thread posts to a URL or passes to a program."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from threading import Event
from typing import TYPE_CHECKING, Any, Self

from setpoint.config import SetpointError, fingerprint
from setpoint.files.threads import Periodic, Worker
from setpoint.track.config import AlertCommand, AlertConfig, Webhook
from setpoint.track.console import now
from setpoint.track.redact import without_secrets
from setpoint.train.loop import Callback, Loop, Phase
from setpoint.train.verdict import StepResult

if TYPE_CHECKING:
    from setpoint.train.session import Run

WAITING = 100
"""Maximum number of queued messages; further ones are dropped."""
BACKOFF = 1.0
"""Seconds before the first retry, doubled for each further one."""

GRACE = 1.0
"""Seconds that the end of a run waits in addition to the send timeout."""

Facts = dict[str, Any]


class Alert(Callback, ABC):
    """An alert, on the main rank.

    Training waits for it only at the end, for a bounded time. A run left by an error counts as a
    failure, by Ctrl-C as a stop.
    """

    phase = Phase.OBSERVE

    def __init__(self, config: AlertConfig) -> None:
        self.config, self.longest = config, config.timeout
        self.name = "tracking.alerts"
        self.facts: Facts = {}
        self.show: Callable[[str], None] = lambda line: None
        self.step: int | None = None
        self.loss: float | None = None
        self.status: int | None = None
        self.reason = ""
        self._lines: deque[str] = deque()
        self._failures = 0
        self._progressed: float | None = None
        self._has_stalled = False
        self._has_sent_end = False
        self._alerts: list[Alert] = [self]
        self._ended = Event()
        self._worker = Worker("setpoint-alert")
        pause = min(config.stalled_after / 4, 5.0)
        self._watch = Periodic(pause, self._look_for_stall, "setpoint-stalls")

    def prepare(self) -> None:
        """Read the references of the section, and set `longest`, the send timeout in seconds.

        Raises:
            SetpointError: a reference is missing.
        """

    @abstractmethod
    def deliver(self, facts: Facts, ended: Event) -> None:
        """Send a message, in the thread; errors are shown, and `ended` interrupts waits."""

    def before_build(self, run: Run, ending: ExitStack) -> None:
        """Start early, so that errors from here on are sent."""
        run.world.on_main(self.prepare)
        if not run.world.is_main:
            return
        index, tag = run.job.tracking.alerts.index(self.config), type(self.config).__setpoint__.tag
        self.name = f"tracking.alerts.{index} ({tag})"
        self.facts = {
            "run": run.directory.name,
            "fingerprint": fingerprint(run.job),
            "directory": str(run.directory.absolute()),
            "host": socket.gethostname(),
        }
        self.show = run.shown.note
        self._alerts = [callback for callback in run.outer_callbacks if isinstance(callback, Alert)]
        ending.enter_context(self)

    def opened(self, run: Run, stack: ExitStack) -> None:
        """Listen to the events of the run."""
        run.events.listeners.append(self.on_event)

    def start(self, loop: Loop) -> None:
        """Start watching for stalls."""
        self.progressed(loop.position.step)

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Record that a step has ended."""
        self.progressed(loop.position.step, result.loss)

    def rewound(self, loop: Loop) -> None:
        """Record a rollback, which counts as progress."""
        self.progressed(loop.position.step)

    def progressed(self, step: int, loss: float | None = None) -> None:
        """Record progress, and show failed sends."""
        self.step, self.loss = step, loss if loss is not None else self.loss
        self._progressed, self._has_stalled = time.monotonic(), False
        self._show()

    def on_event(self, event: str, details: dict[str, Any]) -> None:
        """Handle an event of the run."""
        if event == "end":
            self.status, self.reason = details["status"], details.get("reason", "")
            self.step = details["step"]
        elif event in ("skip", "rollback"):
            step = details["failed"] if event == "rollback" else details["step"]
            outcome = "was skipped" if event == "skip" else f"rolled back to step {details['step']}"
            figures = f"loss {details['loss']}, gradient norm {details['grad_norm']}"
            self.step = step
            self.send(details["cause"], f"step {step} {outcome}: {figures}")

    def send(self, event: str, message: str) -> None:
        """Queue a message if its event is configured."""
        if event not in self.config.events:
            return
        if self._worker.waiting >= WAITING:
            self._failed("too many are waiting to be sent, and further ones are dropped")
            return
        # JSON has no number for a non-finite loss.
        plain = self.loss if self.loss is None or math.isfinite(self.loss) else str(self.loss)
        facts = {"event": event, **self.facts, "time": now(), "step": self.step, "loss": plain}
        facts = without_secrets({**facts, "message": message})
        self._worker.submit(lambda: self._deliver(facts))

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        # Send all before waiting for any, so that a hanging server delays no other alert.
        for alert in self._alerts:
            alert._send_end(error)
        if not self._worker.end(self.longest + GRACE):
            self._ended.set()
            seconds = self.longest + GRACE
            self._lines.append(f"{self.name} could not be sent within {seconds:.0f} s")
        self._show()

    def _send_end(self, error: BaseException | None) -> None:
        """Send the end of the session, once."""
        if self._has_sent_end:
            return
        self._has_sent_end = True
        self._watch.end()
        if isinstance(error, KeyboardInterrupt):
            self.send("stopped", "interrupted")
        elif error is not None:
            self.send("failed", str(error).strip() or type(error).__name__)
        elif self.status == 0:
            self.send("finished", self.reason or "the duration ended")
        elif self.status is not None:
            self.send("stopped", self.reason or "stopped, to be continued later")

    def _look_for_stall(self) -> None:
        if self._progressed is None or self._has_stalled:
            return
        seconds = time.monotonic() - self._progressed
        if seconds > self.config.stalled_after:
            self._has_stalled = True
            self.send("stalled", f"no step has ended for {seconds:.0f} s")

    def _deliver(self, facts: Facts) -> None:
        if self._ended.is_set():
            return
        try:
            self.deliver(facts, self._ended)
        # No error of an alert is a reason to stop a run.
        except Exception as error:
            self._failed(str(error))

    def _failed(self, reason: str) -> None:
        self._failures += 1
        if self._failures == 1:
            self._lines.append(f"{self.name} could not be sent: {reason}; training goes on")

    def _show(self) -> None:
        while self._lines:
            self.show(self._lines.popleft())


class WebhookAlert(Alert):
    """Posts JSON to a URL."""

    config: Webhook
    url: str
    headers: dict[str, str]

    def prepare(self) -> None:
        """Read the URL and the headers.

        Raises:
            SetpointError: a reference is missing, or the URL is not HTTP.
        """
        config = self.config
        self.url = config.url.reveal()
        if not self.url.startswith(("http://", "https://")):
            raise SetpointError(
                f"tracking.alerts: the value of {config.url.dump()} is not a URL (not shown)."
                "\nValid: http://... or https://..."
            )
        self.headers = {name: value.reveal() for name, value in config.headers.items()}
        waits = BACKOFF * (2**config.retries - 1)
        self.longest = config.timeout * (config.retries + 1) + waits

    def deliver(self, facts: Facts, ended: Event) -> None:
        """Post, with retries if the server is unreachable or fails."""
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
        """The error without the URL."""
        hidden = (self.url, *self.headers.values())
        text = str(getattr(error, "reason", None) or error)
        if isinstance(error, urllib.error.HTTPError):
            text = f"the server responded with {error.code} {error.reason}"
        for secret in hidden:
            text = text.replace(secret, "***")
        return text


class CommandAlert(Alert):
    """Runs a program."""

    config: AlertCommand

    def prepare(self) -> None:
        """Find the program.

        Raises:
            SetpointError: the program does not exist.
        """
        program = self.config.command[0]
        if shutil.which(program) is None:
            raise SetpointError(
                f"tracking.alerts: there is no program {program}.\nValid: a program on the PATH, "
                f"the path of an executable, or remove this alert"
            )

    def deliver(self, facts: Facts, ended: Event) -> None:
        """Run the command with a timeout."""
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
            message = f": {lines[-1][:200]}" if lines else ""
            raise RuntimeError(f"{self.config.command[0]} exits {done.returncode}{message}")


def filled(text: str, facts: Facts) -> str:
    """Replace `{name}` in a text with facts; other braces are kept."""
    return re.sub(r"\{(\w+)\}", lambda m: str(facts.get(m[1], m[0])), text)
