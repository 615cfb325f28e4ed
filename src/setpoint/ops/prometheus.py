"""Prometheus endpoint with the newest metric rows.

The format is the text format of Prometheus, version 0.0.4
(https://prometheus.io/docs/instrumenting/exposition_formats), the names follow
https://prometheus.io/docs/practices/naming.
"""

from __future__ import annotations

import math
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import TYPE_CHECKING, Any

from setpoint.config import SetpointError
from setpoint.files.threads import Periodic
from setpoint.track.trackers import RunFacts, Tracker

if TYPE_CHECKING:
    from setpoint.track.config import Prometheus
    from setpoint.track.run_directory import RunDirectory

CONTENT = "text/plain; version=0.0.4; charset=utf-8"
COUNTERS = {
    "step": ("steps_total", "Steps taken."),
    "tokens": ("tokens_total", "Tokens read in training, without padding."),
    "seconds": ("training_seconds_total", "Seconds spent training, over all sessions."),
    "skipped_steps": ("skipped_steps_total", "Steps that were not taken."),
}
"""Columns of training rows that are counters."""
UNITS = {"peak_rss": "peak_rss_bytes", "peak_gpu_memory": "peak_gpu_memory_bytes"}
"""Columns with a unit to append to their names."""
POLL = 0.1
"""Seconds between checks for the end of a run."""
TIMEOUT = 10.0
"""Timeout of an idle connection in seconds."""


class PrometheusTracker(Tracker):
    """Serves `/metrics` from a thread; binds the port when built.

    Raises:
        SetpointError: the server cannot listen on the address.
    """

    synchronous = True

    def __init__(self, config: Prometheus, *, run_directory: RunDirectory | None = None) -> None:
        self.config = config
        self._rows: dict[str, dict[str, Any]] = {}
        self._written: dict[str, float] = {}
        self._facts: RunFacts | None = None
        self._lock = Lock()
        try:
            family = socket.getaddrinfo(config.address, config.port)[0][0]
            server = type("Server", (_Server,), {"address_family": family})
            self._server = server((config.address, config.port), _handler(self.page))
        except OSError as error:
            raise SetpointError(
                f"tracking.trackers: prometheus cannot listen at {config.address}:{config.port}: "
                f"{error.strerror}.\nValid: a free port, or 0 for any"
            ) from error
        self.port: int = self._server.server_address[1]
        self._server.timeout = POLL
        self._periodic = Periodic(0.0, self._server.handle_request, "setpoint-prometheus")
        self._periodic.start()

    def describe(self, facts: RunFacts) -> None:
        """See `Tracker.describe`."""
        self._facts = facts

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Show the address."""
        note(f"metrics for Prometheus: http://{self.config.address}:{self.port}/metrics")

    def write(self, row: dict[str, Any]) -> None:
        """Serve a row, replacing the previous one of its kind."""
        kind = str(row.get("kind", "train"))
        with self._lock:
            self._rows[kind], self._written[kind] = dict(row), time.time()

    def close(self) -> None:
        """Stop listening."""
        self._periodic.end()
        self._server.server_close()

    def page(self) -> str:
        """The current page."""
        with self._lock:
            rows, written = dict(self._rows), dict(self._written)
        facts = self._facts
        run = {} if facts is None else {"run": facts.name}
        lines: list[str] = []
        if facts is not None:
            info = {**run, "run_id": facts.run_id, "fingerprint": facts.fingerprint}
            lines += _metric("run_info", "gauge", "The run that trains here.", [(info, 1.0)])
        for kind, row in rows.items():
            for name, counts, text, values in _columns(kind, row):
                samples = [({**run, **labels}, value) for labels, value in values]
                lines += _metric(name, "counter" if counts else "gauge", text, samples)
            name = f"{kind}_row_timestamp_seconds"
            text = f"When the newest row of kind {kind} was written."
            lines += _metric(name, "gauge", text, [(run, written[kind])])
        return "".join(f"{line}\n" for line in lines)


_Samples = list[tuple[dict[str, str], float]]


def _columns(kind: str, row: Mapping[str, Any]) -> Iterator[tuple[str, bool, str, _Samples]]:
    """Name, counter flag, help text, and values with labels of each numeric column.

    A label distinguishes columns whose Prometheus names are equal.
    """
    metrics: dict[str, tuple[bool, str, _Samples]] = {}
    for column, value in row.items():
        if column in COUNTERS and kind == "train":
            name, text = COUNTERS[column]
            counts = True
        else:
            plain = re.sub(r"[^a-z0-9]+", "_", UNITS.get(column, column).lower()).strip("_")
            name, text, counts = f"{kind}_{plain}", f"{column} of the newest row.", False
            if column == "step":
                continue
        several = isinstance(value, list | tuple)
        samples: _Samples = [
            ({"index": str(index)} if several else {}, float(number))
            for index, number in (enumerate(value) if several else [(0, value)])
            if isinstance(number, int | float) and not isinstance(number, bool)
        ]
        if name in metrics:
            samples = [({"column": column, **labels}, number) for labels, number in samples]
            samples = [*metrics[name][2], *samples]
        if samples:
            metrics[name] = (counts, text, samples)
    for name, (counts, text, samples) in metrics.items():
        yield name, counts, text, samples


def _metric(name: str, kind: str, text: str, samples: _Samples) -> list[str]:
    name = f"setpoint_{name}"
    lines = [f"# HELP {name} {_escaped(text)}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{_quoted(label)}"' for key, label in labels.items())
        lines.append(
            f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"
        )
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Avoid the name lookup of the base class, which may hang and is not needed.
    allow_reuse_address = True

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connection errors."""


def _handler(page: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT

        def do_GET(self) -> None:
            is_known = self.path.partition("?")[0] == "/metrics"
            body = page().encode() if is_known else b"see /metrics\n"
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", CONTENT if is_known else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Suppress the server's log on the run's standard error."""

    return Handler
