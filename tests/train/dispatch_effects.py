"""Fields of experts on several ranks, and where each is seen."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from setpoint.model.moe.deepep import DeepEPDispatcher
from setpoint.model.moe.dispatch import build_dispatcher
from setpoint.parallel.expert_ranks import expert_grid
from setpoint.train.config import Job

from ..model.moe import stand_in_deepep


def experts_of(job: Job) -> Any:
    """The ranks that hold the same experts, by the experts that they hold."""
    grid = expert_grid(job.parallel, job.parallel.degrees)
    return grid.reshape(-1, *grid.shape[3:]).tolist()


def exchange_of(job: Job) -> tuple[Any, ...]:
    """What takes tokens to experts, and what it was given."""
    group: Any = SimpleNamespace(size=lambda: 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "deep_ep", stand_in_deepep)
        found = build_dispatcher(job.parallel.dispatch, job.model, group, None, False)
    if not isinstance(found, DeepEPDispatcher):
        return (type(found).__name__,)
    return "DeepEP", found.buffer_size, stand_in_deepep.Buffer.sms, found.async_combine


RANKS = ("parallel.world_size=4", "parallel.shard=-1", "batch.global_size=16",
         "model.moe.experts=4")  # fmt: skip
DEEPEP = (*RANKS, "parallel.expert=4", "precision.compute=bf16", "parallel.dispatch=deepep")
TENSOR = ("parallel.world_size=4", "parallel.shard=2", "parallel.tensor=2", "batch.global_size=16",
          "model.moe.experts=4")  # fmt: skip
ROWS = {
    "Parallel.expert": ("parallel.expert=2", experts_of, RANKS, [[[0], [1]], [[2], [3]]]),
    "Parallel.expert_tensor": ("parallel.expert_tensor=2", experts_of, TENSOR,
                               [[[0, 1]], [[2, 3]]], ("accumulation",)),
    "Parallel.expert_mesh_order": ("parallel.expert_mesh_order=expert_major", experts_of,
                                (*RANKS, "parallel.expert=2"), [[[0], [2]], [[1], [3]]]),
    "Parallel.dispatch": ("parallel.dispatch=deepep", exchange_of,
                          (*RANKS, "parallel.expert=4", "precision.compute=bf16"),
                          ("DeepEP", 2 * 10**9, 20, False)),
    "DeepEP.buffer_size": ("parallel.dispatch.buffer_size=1 MB", exchange_of, DEEPEP,
                           ("DeepEP", 10**6, 20, False)),
    "DeepEP.sms": ("parallel.dispatch.sms=24", exchange_of, DEEPEP,
                   ("DeepEP", 2 * 10**9, 24, False)),
    "DeepEP.async_combine": ("parallel.dispatch.async_combine=true", exchange_of, DEEPEP,
                             ("DeepEP", 2 * 10**9, 20, True)),
}  # fmt: skip
