"""Run directories written by hand, without training."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def setting(value: Any, origin: str = "default", layer: str = "default") -> dict[str, Any]:
    """An entry of `origins.json`."""
    layers = [{"layer": layer, "origin": origin, "value": value}]
    return {"value": value, "role": "identity", "layers": layers}


def train_row(step: int, loss: float, **more: Any) -> dict[str, Any]:
    """A row of metrics, as training writes it."""
    return {
        "kind": "train",
        "time": f"2026-01-01T00:00:{step % 60:02}.000Z",
        "step": step,
        "tokens": 100 * step,
        "loss": loss,
        "mean_loss": loss,
        "lr": 0.001 * step,
        "grad_norm": 1.0,
        "seconds": 0.5 * step,
        "tokens_per_second": 200.0,
    } | more


EVENTS = (
    {"time": "2026-01-01T00:00:00.000Z", "event": "start", "step": 0, "version": "0.1"},
    {"time": "2026-01-01T00:00:05.000Z", "event": "save", "step": 5, "checkpoint": "step-5"},
    {"time": "2026-01-01T00:00:10.000Z", "event": "end", "step": 10, "status": 0},
)
ENVIRONMENT = {"command": ["setpoint", "train", "a b"], "packages": {"torch": "2.13"}}


def write_run(
    folder: Path,
    rows: Sequence[Mapping[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    events: Sequence[Mapping[str, Any]] = EVENTS,
    environment: Mapping[str, Any] = ENVIRONMENT,
) -> Path:
    """Write a run directory."""
    folder.mkdir(parents=True, exist_ok=True)
    if rows is None:
        rows = [train_row(step, 5.0 - step / 4) for step in range(1, 11)]
        rows.append({"kind": "evaluation", "step": 10, "tokens": 1000, "held_out_loss": 2.75})
    settings = settings or {"optimizer.lr": setting(0.003, "command line --optimizer.lr", "typed")}
    config = {"setpoint": {"fingerprint": "abcdef0123456789"}, "optimizer": {"lr": 0.003}}
    files = {
        "config.json": json.dumps(config),
        "origins.json": json.dumps(settings),
        "environment.json": json.dumps(environment),
        "metrics.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "events.jsonl": "".join(json.dumps(event) + "\n" for event in events),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder
