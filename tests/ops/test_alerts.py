"""Alerts: what is sent, when, and that nothing of it stops a run or shows a secret."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import RunError, Secret
from setpoint.ops import alerts as module
from setpoint.ops.alerts import Alert, filled
from setpoint.track.config import AlertCommand, AlertConfig, Webhook
from setpoint.train.run import train

from ..support.snapshots import refused
from ..train.small import small_job

FACTS = {"run": "small-1234", "fingerprint": "12345678"}


class Server(ThreadingHTTPServer):
    """Keeps what is posted to it, and answers as it is told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[dict[str, str], Any]] = []
        self.answers: list[int] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/planted-secret-of-a-url"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.may_answer.wait(10)
        self.server.got.append((dict(self.headers), json.loads(body)))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 204)
        self.end_headers()

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    found = Server()
    monkeypatch.setenv("ALERT_URL", found.url)
    monkeypatch.setenv("ALERT_TOKEN", "planted-secret-of-a-header")
    monkeypatch.setattr(module, "BACKOFF", 0.01)
    monkeypatch.setattr(module, "GRACE", 0.2)
    yield found
    found.may_answer.set()
    found.shutdown()
    found.server_close()


def opened(path: Path, section: AlertConfig) -> tuple[Alert, list[str]]:
    lines: list[str] = []
    alert: Alert = section.build()
    alert.prepare()
    alert.name = f"tracking.alerts.0 ({type(section).__setpoint__.tag})"
    alert.facts = {**FACTS, "directory": str(path), "host": "here"}
    alert.show = lines.append
    return alert, lines


def hook(**given: Any) -> Webhook:
    return Webhook(url=Secret("env:ALERT_URL"), **given)


def test_a_webhook_gets_what_happens(tmp_path: Path, server: Server) -> None:
    """Tried again where the server is at fault; with headers, and in a form of one's own."""
    server.answers = [503, 204]
    headers = {"Authorization": Secret("env:ALERT_TOKEN")}
    body = {"text": "{run}: {event} at {step}, {loss}: {message} {other}"}
    alerts, lines = opened(tmp_path, hook(headers=headers, body=body))
    with alerts:
        alerts.progressed(3, float("nan"))
        skip = {"step": 4, "loss": 9.5, "grad_norm": 2.0, "cause": "spike"}
        alerts.on_event("skip", skip)
        rollback = {"step": 2, "failed": 5, "loss": 1.0, "grad_norm": 2.0, "cause": "non_finite"}
        alerts.on_event("rollback", rollback)
        alerts.on_event("end", {"step": 9, "status": 0})
    texts = [each["text"] for _, each in server.got]
    assert lines == [] and texts == [
        "small-1234: spike at 4, nan: step 4 was skipped: loss 9.5, gradient norm 2.0 {other}",
        "small-1234: spike at 4, nan: step 4 was skipped: loss 9.5, gradient norm 2.0 {other}",
        "small-1234: non_finite at 5, nan: step 5 rolled back to step 2: loss 1.0, gradient norm "
        "2.0 {other}",
        "small-1234: finished at 9, nan: the duration ended {other}",
    ]
    assert server.got[0][0]["Authorization"] == "planted-secret-of-a-header"
    plain, lines = opened(tmp_path, hook(events=("finished",)))
    with plain:
        plain.progressed(8, float("nan"))
        plain.on_event("skip", skip)
        plain.on_event("end", {"step": 9, "status": 0})
    _, whole = server.got[-1]
    assert lines == [] and len(server.got) == 5
    assert whole | {"time": "", "host": ""} == {
        "event": "finished", "run": "small-1234", "fingerprint": "12345678", "time": "",
        "directory": str(tmp_path), "host": "", "step": 9, "loss": "nan",
        "message": "the duration ended",
    }  # fmt: skip


def test_a_server_that_hangs_or_dies_stops_nothing(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, without the address."""
    server.may_answer.clear()
    alerts, lines = opened(tmp_path, hook(timeout=0.1, retries=1))
    with alerts:
        for step in range(5):
            alerts.send("spike", f"step {step}")
    assert len(lines) <= 2 and lines[0].startswith("tracking.alerts.0 (webhook) could not be sent")
    other = Server()  # whose answers no late request takes
    monkeypatch.setenv("ALERT_URL", other.url)
    other.answers = [404]
    refusing, said = opened(tmp_path, hook())
    with refusing:
        refusing.on_event("end", {"step": 9, "status": 75, "reason": "SIGTERM"})
    assert said == [
        "tracking.alerts.0 (webhook) could not be sent: the server responded with 404 Not Found; "
        "training goes on"
    ]
    other.shutdown()
    other.server_close()
    gone, told = opened(tmp_path, hook(retries=0))
    with gone:
        gone.on_event("end", {"step": 9, "status": 0})
    assert len(told) == 1 and "refused" in told[0]
    assert not any("planted-secret" in line for line in lines + said + told)


def test_a_failure_and_a_stop_are_sent(tmp_path: Path, server: Server) -> None:
    """Whatever the failure says of a secret."""
    leaking = RuntimeError("https://user:hunter2-planted@host/x is gone")
    for error in (leaking, KeyboardInterrupt()):
        with pytest.raises(type(error)), opened(tmp_path, hook())[0]:
            raise error
    messages = [(each["event"], each["message"]) for _, each in server.got]
    assert messages == [
        ("failed", "https://***@host/x is gone"), ("stopped", "interrupted"),
    ]  # fmt: skip


def test_a_stall_is_sent_once(tmp_path: Path, server: Server) -> None:
    alert, _ = opened(tmp_path, hook(stalled_after=0.05))
    other, _ = opened(tmp_path, hook(stalled_after=100.0))
    with alert, other:
        time.sleep(0.15)  # nothing has begun
        assert not server.got
        for count in (1, 2):
            alert.progressed(count)
            other.progressed(count)
            while len(server.got) < count:
                time.sleep(0.01)
            time.sleep(0.1)
            assert len(server.got) == count
    assert [(each["event"], each["step"]) for _, each in server.got] == [
        ("stalled", 1), ("stalled", 2),
    ]  # fmt: skip


def test_a_program_gets_the_facts(tmp_path: Path) -> None:
    """As JSON and as variables; what it prints last is shown where it fails."""
    out = tmp_path / "out.txt"
    script = f'cat > {out}; echo "$SETPOINT_ALERT_EVENT $0" >> {out}; echo broken >&2; exit $1'
    program = ("sh", "-c", script, "a; b")
    alerts, lines = opened(tmp_path, AlertCommand(command=(*program, "0")))
    with alerts:
        alerts.on_event("end", {"step": 9, "status": 0})
    first, last = out.read_text().split("}")
    assert json.loads(first + "}")["run"] == "small-1234" and last == "finished a; b\n"
    assert lines == []
    for words, reason in (
        ((*program, "3"), "sh exits 3: broken"),
        (("sleep", "9"), "sleep took longer than 0.2 s"),
    ):
        alerts, lines = opened(tmp_path, AlertCommand(command=words, timeout=0.2))
        with alerts:
            alerts.on_event("end", {"step": 9, "status": 0})
        assert len(lines) == 1 and reason in lines[0]


def test_a_missing_address_or_program_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALERT_URL", raising=False)
    with refused():
        opened(tmp_path, hook())
    monkeypatch.setenv("ALERT_URL", "file:///planted")
    with refused():
        opened(tmp_path, hook())
    with refused():
        opened(tmp_path, AlertCommand(command=("no-such-program",)))


def test_texts_are_filled() -> None:
    assert filled("{a} {b} {a.__class__} {{a}}", {"a": 1}) == "1 {b} {a.__class__} {1}"


def test_a_run_that_fails_while_it_starts_is_told_of(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that fails in a step; the reference alone is in the record."""
    job = small_job(
        tmp_path, "evaluation=null", "duration=2 steps", "checkpoint.save=false",
        "tracking.alerts=[{type: webhook, url: 'env:ALERT_URL', retries: 0}]",
    )  # fmt: skip

    def fails(*given: Any) -> None:
        raise RunError("the disk is gone")

    for name in ("setpoint.train.run.build_components", "setpoint.train.loop.Loop.take_step"):
        with monkeypatch.context() as patch, pytest.raises(RunError):
            patch.setattr(name, fails)
            train(job)
    train(job)
    assert [(each["event"], each["message"]) for _, each in server.got] == [
        ("failed", "the disk is gone"), ("failed", "the disk is gone"),
        ("finished", "the duration ended"),
    ]  # fmt: skip
    for path in (tmp_path / "runs").rglob("*.json*"):
        # The environment's record has the difference of the code, such as this file's.
        assert path.name == "environment.json" or "planted-secret" not in path.read_text()
