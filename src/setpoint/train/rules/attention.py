"""Cross-section checks of `model.attention_backend`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Caution, Problem
from setpoint.model.attention.support import (
    LIMITS,
    able,
    chosen,
    determinism_problems,
    holds_mask,
    is_masked,
    kinds_of,
    placement_problems,
    unplaced,
)
from setpoint.model.config import Transformer

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
    if job.parallel.device == "auto":
        import torch

        if not torch.cuda.is_available():
            return
    yield from masks_on_gpu(job)


def masks_on_gpu(job: Job) -> Iterator[Caution]:
    """The same, should the device be one."""
    model, length, rows = job.model, job.batch.sequence_length, job.batch.micro_size
    assert isinstance(model, Transformer)
    packing, compute = job.data.packing, job.precision.compute
    documents = bool(packing.isolate) and packing.method != "none"
    ring = job.parallel.degrees["ring"] > 1
    for kind in kinds_of(model):
        masked = is_masked(model, kind, length, documents=documents)
        held = holds_mask(model, "cuda", compute, masked=masked, ring=ring)
        if held is None:
            continue
        name = chosen(model, "cuda", compute, masked=masked, ring=ring)
        # One byte for what is seen, and one number of two bytes that is added to the scores; of
        # scores two copies in fp32.
        size = rows * length**2 * (3 if held == "mask" else 8 * model.heads)
        better = [
            each
            for each in able(model)
            if each != "auto"
            and LIMITS[each].masks not in ("dense", "causal" if masked else "dense")
            and unplaced(model, each, "cuda", compute) is None
            and (LIMITS[each].lse or not ring)
        ]
        asked = {
            "attention_soft_cap": model.attention_soft_cap,
            "attention_dropout": model.attention_dropout,
            "sliding_window": masked and not documents,
        }
        also = [f"model.{field}" for field, value in asked.items() if value]
        yield Caution(
            "dense-attention",
            "model.attention_backend",
            f"{name} holds {'a mask' if held == 'mask' else 'scores of all heads'} of {length} x "
            f"{length} positions for each row of a micro-batch on a GPU ({size / 2**20:,.1f} MiB), "
            f"and skips nothing that is hidden",
            valid=tuple(better) if model.attention_backend != "auto" else (),
            also=(
                *also,
                "batch.sequence_length",
                *(("data.packing.isolate",) if documents else ()),
            ),
            hint="" if better else "Without model.attention_dropout auto needs no mask.",
        )
        return
