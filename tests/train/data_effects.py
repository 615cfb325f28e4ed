"""Effects of mixtures and phases on which rows are trained on, and at which learning rate."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import torch

from setpoint.config import RunError
from setpoint.train.build.components import build_components
from setpoint.train.build.data import loader_options
from setpoint.train.config import Job

from .schedule_effects import updates

OTHER = "{type=random, name=other, documents=20, seed=5, weight=1.0}"
# Each kind of source, with which a mixture is made.
KINDS = {
    "Stdlib": 'type=stdlib, include=["json/*"]',
    "Text": 'type=text, paths=["{tmp}/text/*.txt"]',
    "Conversations": 'type=conversations, paths=["{tmp}/chats/*.jsonl"], template=plain, '
    "untrained=drop",
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


def processes(job: Job) -> int:
    """Processes that a feed starts for its first step."""
    feed = build_components(job).feed
    feed.take()
    found = len(multiprocessing.active_children())
    feed.close()
    return found


def ahead(job: Job) -> int:
    """How many micro-batches are named when the first one is taken."""
    feed = build_components(job).feed
    feed.take()
    named = feed.sampler.position // feed.micro_size
    feed.close()
    return named


def pinned(job: Job) -> bool:
    """Whether batches for a GPU are pinned."""
    return loader_options(job, torch.device("cuda"))["pin_memory"]


class Slow:
    """Sequences that take a second to make."""

    def __init__(self, sequences: Any) -> None:
        self.describe = sequences.describe
        self.sources, self.rows_of = sequences.sources, sequences.rows

    def rows(self, rows: Any) -> Any:
        time.sleep(1)
        return self.rows_of(rows)


def hanging(job: Job) -> str:
    """What becomes of a worker that takes a second."""
    feed = build_components(job).feed
    feed.sequences = Slow(feed.sequences)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        feed.take()
        return "taken"
    except RunError as error:
        return str(error).partition(":")[0]
    finally:
        feed.close()


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
    "Loader.workers": ("data.loader.workers=1", processes),
    "Loader.prefetch": ("data.loader.prefetch=5", ahead, ("data.loader.workers=1",)),
    "Loader.pin_memory": ("data.loader.pin_memory=false", pinned, ("data.loader.workers=1",)),
    "Loader.timeout": ("data.loader.timeout=0.5", hanging, ("data.loader.workers=1",),
                       "data.loader.timeout"),
}  # fmt: skip
for kind in KINDS:
    ROWS[f"{kind}.weight"] = ("data.sources.0.weight=5", stream, mixed_with(kind))
    ROWS[f"{kind}.epochs"] = ("data.sources.0.epochs=0.001", stream, mixed_with(kind))
