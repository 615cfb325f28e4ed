"""The endpoint for Prometheus."""

import re
import socket
import urllib.error
import urllib.request

import pytest

from setpoint.config import SetpointError
from setpoint.ops.prometheus import PrometheusTracker
from setpoint.track.config import Prometheus
from setpoint.track.trackers import RunFacts

FACTS = RunFacts("0" * 32, 'a "run" \\ 1', None, "12345678", {}, {}, {})
LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')


def scrape(tracker: PrometheusTracker, path: str = "/metrics") -> str:
    url = f"http://127.0.0.1:{tracker.port}{path}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def parsed(page: str) -> dict[tuple[str, str], float]:
    """Values by name and labels, of a page whose every line is as the format has it."""
    found: dict[tuple[str, str], float] = {}
    types: dict[str, str] = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types and kind in ("gauge", "counter")
            assert (kind == "counter") == name.endswith("_total")
            types[name] = kind
        elif not line.startswith("# HELP "):
            match = LINE.fullmatch(line)
            assert match and match[1] in types, line
            assert (match[1], match[2]) not in found
            found[match[1], match[2]] = float(match[3])
    return found


def test_the_newest_rows_are_served() -> None:
    tracker = PrometheusTracker(Prometheus(port=0))
    try:
        assert scrape(tracker) == ""
        tracker.describe(FACTS)
        row = {"kind": "train", "time": "now", "step": 3, "tokens": 96, "loss": 2.5, "mfu": None,
               "expert_load": [0.25, 0.75], "lr_/a/": 1.0, "lr_a": 2.0, "peak_rss": 7,
               "grad_norm": float("inf"), "seconds": 1.5}  # fmt: skip
        tracker.write({**row, "loss": 9.0})
        tracker.write(row)
        tracker.write({"kind": "evaluation", "step": 3, "held_out_loss": float("nan")})
        found, run = parsed(scrape(tracker)), 'run="a \\"run\\" \\\\ 1"'
        assert found["setpoint_train_loss", run] == 2.5
        assert found["setpoint_steps_total", run] == 3
        assert found["setpoint_tokens_total", run] == 96
        assert found["setpoint_training_seconds_total", run] == 1.5
        assert found["setpoint_train_peak_rss_bytes", run] == 7
        assert found["setpoint_train_grad_norm", run] == float("inf")
        assert found["setpoint_train_expert_load", f'{run},index="1"'] == 0.75
        assert found["setpoint_train_lr_a", run] == 1.0
        assert found["setpoint_train_lr_a", f'{run},column="lr_a"'] == 2.0
        assert str(found["setpoint_evaluation_held_out_loss", run]) == "nan"
        assert any(name == "setpoint_run_info" for name, _ in found)
        assert not any("mfu" in name or name.endswith("_time") for name, _ in found)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            scrape(tracker, "/etc/passwd")
    finally:
        tracker.close()
    with pytest.raises(OSError):
        scrape(tracker)


def test_it_listens_on_loopback_and_refuses_a_port_that_is_taken() -> None:
    tracker = PrometheusTracker(Prometheus(port=0))
    try:
        assert tracker._server.server_address[0] == "127.0.0.1"
        with pytest.raises(SetpointError, match=r"cannot listen at 127\.0\.0\.1:\d+: .*in use"):
            PrometheusTracker(Prometheus(port=tracker.port))
        with socket.create_connection(("127.0.0.1", tracker.port)) as silent:
            silent.send(b"GET /metrics")  # and no more: others are answered
            assert scrape(tracker) == ""
    finally:
        tracker.close()
