"""Cross-section checks of `model.attention_backend`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Caution, Problem
from setpoint.model.attention.support import (
    LIMITS,
    able,
    demands_of,
    determinism_problems,
    placement_problems,
    unplaced,
)
from setpoint.model.config import Transformer
from setpoint.train.rules.table import dense_on_gpu

if TYPE_CHECKING:
    from setpoint.train.config import Job


def backend_problems(job: Job) -> Iterator[Problem]:
    """Find what the backend cannot do on the kind of device, with the dtype, or repeatably."""
    assert isinstance(job.model, Transformer)
    if job.deterministic:
        yield from determinism_problems(job.model)
    device, compute = job.parallel.device, job.precision.compute
    yield from placement_problems(job.model, device, compute, training=True)


def device_problems(job: Job) -> Iterator[Problem]:
    """Find why the backend does not run on the device that is here."""
    from setpoint.model.attention import selection  # which needs torch

    device, compute = job.parallel.device, job.precision.compute
    yield from selection.device_problems(job.model, device, compute, training=True)


def mask_cautions(job: Job) -> Iterator[Caution]:
    """Find attention that holds tensors of S x S positions on a GPU."""
    found, model = dense_on_gpu(job), job.model
    assert isinstance(model, Transformer)
    if job.parallel.device == "auto":
        import torch

        found = found if torch.cuda.is_available() else None
    if found is None:
        return
    length, compute = job.batch.sequence_length, job.precision.compute
    # One byte for what is seen, and two for what is added to a score; scores are there twice.
    size = job.batch.micro_size * length**2 * (8 * model.heads if found.scores else 3)
    without = ("dense", "causal") if found.masked else ("dense",)
    better = [
        name
        for name in able(model)
        if name != "auto"
        and LIMITS[name].masks not in without
        and unplaced(demands_of(model), name, "cuda", compute) is None
        and (LIMITS[name].lse or job.parallel.degrees["ring"] == 1)
    ]
    fields = ("model.attention_soft_cap", "model.attention_dropout", "model.sliding_window")
    also = [field for field in fields if getattr(model, field.partition(".")[2])]
    held = "scores of all heads" if found.scores else "a mask"
    yield Caution(
        "dense-attention",
        "model.attention_backend",
        f"{found.name} holds {held} of {length} x {length} positions for each row of a micro-batch "
        f"on a GPU ({size / 2**20:,.1f} MiB), and skips nothing that is hidden",
        valid=tuple(better) if model.attention_backend != "auto" else (),
        also=(*also, "batch.sequence_length", "data.packing.isolate"),
        hint="" if better else "Without model.attention_dropout auto needs no mask.",
    )
