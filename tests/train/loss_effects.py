"""Rows of the table of effects: the fields of the losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.nn import functional as F

from setpoint.loss.config import LinearCrossEntropy
from setpoint.loss.fused import linear_missing
from setpoint.resilience.signals import StopRequest
from setpoint.shapes.outcome import Projection
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.position import Position

from ..loss.liger_stand_in import liger_stand_in


def trained(job: Job) -> list[bytes]:
    """The parameters after an update."""
    if isinstance(job.loss, LinearCrossEntropy) and (why := linear_missing()):
        pytest.skip(why)
    components = build_components(job)
    Loop(job, components, [], StopRequest(), Position()).step()
    return [p.detach().numpy().tobytes() for p in components.model.parameters()]


def trained_by_liger(job: Job) -> list[bytes]:
    """The same, with what stands for liger-kernel where there is no GPU."""
    with liger_stand_in():
        return trained(job)


def chunk_sizes(job: Job) -> set[int | None]:
    """The tokens whose logits are made at once, or how many torch is told to take."""
    seen: set[int | None] = set()

    def finish(self: Projection, logits: Any, real: Any = Projection.finish) -> Any:
        seen.add(len(logits))
        return real(self, logits)

    real_linear: Any = getattr(F, "linear_cross_entropy", None)

    def linear(*args: Any, options: Any, **rest: Any) -> Any:
        seen.add(options.batch_chunk_size)
        return real_linear(*args, options=options, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Projection, "finish", finish)
        if real_linear is not None:
            patch.setattr(F, "linear_cross_entropy", linear)
        trained(job)
    return seen


See = Callable[[Job], Any]
CHUNKED = ("loss=chunked_cross_entropy",)
LINEAR = ("loss=linear_cross_entropy",)
LIGER = ("loss=liger_cross_entropy",)
# By the name of a field: the change, where it is seen, and what is set on both sides. The bytes
# of the small job's text are 32 to 39.
ROWS: dict[str, tuple[str, See, tuple[str, ...]]] = {
    "CrossEntropy.z_loss": ("loss.z_loss=0.1", trained, ()),
    "CrossEntropy.label_smoothing": ("loss.label_smoothing=0.1", trained, ()),
    "CrossEntropy.ignore_index": ("loss.ignore_index=33", trained, ()),
    "CrossEntropy.token_weights": ("loss.token_weights={33: 2}", trained, ()),
    "ChunkedCrossEntropy.z_loss": ("loss.z_loss=0.1", trained, CHUNKED),
    "ChunkedCrossEntropy.label_smoothing": ("loss.label_smoothing=0.1", trained, CHUNKED),
    "ChunkedCrossEntropy.ignore_index": ("loss.ignore_index=33", trained, CHUNKED),
    "ChunkedCrossEntropy.token_weights": ("loss.token_weights={33: 2}", trained, CHUNKED),
    "ChunkedCrossEntropy.chunk_size": ("loss.chunk_size=16", chunk_sizes, CHUNKED),
    "LinearCrossEntropy.ignore_index": ("loss.ignore_index=33", trained, LINEAR),
    "LinearCrossEntropy.token_weights": ("loss.token_weights={33: 2}", trained, LINEAR),
    "LinearCrossEntropy.chunk_size": ("loss.chunk_size=16", chunk_sizes, LINEAR),
    "LigerCrossEntropy.ignore_index": ("loss.ignore_index=33", trained_by_liger, LIGER),
    "LigerCrossEntropy.z_loss": ("loss.z_loss=0.1", trained_by_liger, LIGER),
}
