"""Reads traces, and holds them against the rules of the Chrome trace format."""

import gzip
import json
from pathlib import Path
from typing import Any

import torch

PHASES = set("BEXiIMCsftbneNODP")
"""Of the Trace Event Format (Google, 2016), which Perfetto reads."""


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Read a trace, and check each event."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert isinstance(document, dict)
    found = document["traceEvents"]
    for event in found:
        check_event(event)
    return found


def check_event(event: dict[str, Any]) -> None:
    """Check what the format demands of one event."""
    assert event["ph"] in PHASES, event
    assert isinstance(event["name"], str), event
    assert isinstance(event["pid"], int | str), event
    assert isinstance(event["tid"], int | str), event
    assert isinstance(event["ts"], int | float), event
    if event["ph"] == "X":
        assert isinstance(event["dur"], int | float) and event["dur"] >= 0, event
    if event["ph"] == "C":
        assert all(isinstance(value, int | float) for value in event["args"].values()), event
    if event["ph"] in "sft":
        assert "id" in event, event


def spans(events: list[dict[str, Any]]) -> list[str]:
    """The names of the spans that the loop sets."""
    found = [e for e in events if e.get("cat") == "user_annotation"]
    names = [e["name"] for e in sorted(found, key=lambda e: e["ts"])]
    return [n for n in names if not n.startswith(("ProfilerStep#", "Optimizer."))]


def recording() -> bool:
    """True if any profiler of torch runs."""
    enabled: Any = vars(torch.autograd)["_profiler_enabled"]
    return enabled()
