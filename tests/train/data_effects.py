"""Effects of mixtures and phases on which rows are trained on, and at which learning rate."""

from __future__ import annotations

from typing import Any

from setpoint.train.build.components import build_components
from setpoint.train.config import Job

from .schedule_effects import updates

OTHER = "{type=random, name=other, documents=20, seed=5, weight=1.0}"
# Each kind of source, with which a mixture is made.
KINDS = {
    "Stdlib": 'type=stdlib, include=["json/*"]',
    "Text": 'type=text, paths=["{tmp}/text/*.txt"]',
    "Random": "type=random, documents=20",
}
MIXED = (f"data.sources=[{{{KINDS['Random']}, weight=1.0}}, {OTHER}]",)


def stream(job: Job) -> list[Any]:
    """The first rows of a feed, and what they are from."""
    feed = build_components(job).feed
    steps = [feed.take() for _ in range(4)]
    return [[batch.inputs.tolist() for batch in step.batches] for step in steps]


def rates(job: Job) -> list[float]:
    """The learning rates."""
    return [result.lr for result in updates(job)]


def mixed_with(kind: str) -> tuple[str]:
    return (f"data.sources=[{{{KINDS[kind]}, weight=1.0}}, {OTHER}]",)


ROWS: dict[str, tuple[Any, ...]] = {
    "Mixture.temperature": (
        "data.mixture.temperature=3", stream, (*MIXED, "data.sources.0.weight=9")),
    "Data.phases": ("data.phases=[{start=2, weights={other=9.0}}]", stream, MIXED),
    "Data.anneal": ("data.anneal={start=2, weights={other=9.0}}", stream, MIXED),
    "Phase.start": ("data.anneal.start=3", stream,
                    (*MIXED, "data.anneal={start=1, weights={other=9.0}}")),
    "Phase.weights": ("data.anneal.weights={other=0.1}", stream,
                      (*MIXED, "data.anneal={start=1, weights={other=9.0}}")),
    "Phase.lr_factor": ("data.anneal.lr_factor=0.5", rates, (*MIXED, "data.anneal={start=2}")),
}  # fmt: skip
for kind in KINDS:
    ROWS[f"{kind}.weight"] = ("data.sources.0.weight=5", stream, mixed_with(kind))
    ROWS[f"{kind}.epochs"] = ("data.sources.0.epochs=0.001", stream, mixed_with(kind))
