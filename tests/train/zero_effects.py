"""Fields of DeepSpeed's engine, and what it is given for each."""

from __future__ import annotations

from typing import Any

from setpoint.parallel.engines import zero_settings
from setpoint.train.config import Job


def zero(job: Job) -> Any:
    """What DeepSpeed is told of ZeRO; None where PyTorch trains."""
    settings = zero_settings(job)
    return settings and settings["zero_optimization"]


RANKS = ("parallel.world_size=4", "batch.global_size=16")
ON = (*RANKS, "parallel.engine=deepspeed")
THREE = (*ON, "parallel.engine.stage=3")
BUCKET = 25 * 2**20 // 4
GATHERED = 200 * 2**20 // 4
SECOND = {
    "stage": 2,
    "contiguous_gradients": True,
    "reduce_bucket_size": BUCKET,
    "allgather_bucket_size": GATHERED,
}
THIRD = {
    "stage": 3,
    "contiguous_gradients": True,
    "reduce_bucket_size": BUCKET,
    "stage3_prefetch_bucket_size": GATHERED,
    "stage3_param_persistence_threshold": 100_000,
}
ON_HOST = {"device": "cpu"}
ROWS = {
    "Parallel.engine": ("parallel.engine=deepspeed", zero, RANKS, SECOND),
    "DeepSpeed.stage": ("parallel.engine.stage=3", zero, ON, THIRD),
    "DeepSpeed.offload": ("parallel.engine.offload=all", zero, (*THREE, "parallel.device=auto"),
                          {**THIRD, "offload_optimizer": ON_HOST, "offload_param": ON_HOST}),
    "DeepSpeed.overlap": ("parallel.engine.overlap=true", zero, ON,
                          {**SECOND, "overlap_comm": True}),
    "DeepSpeed.contiguous_gradients": ("parallel.engine.contiguous_gradients=false", zero, ON,
                                       {**SECOND, "contiguous_gradients": False}),
    "DeepSpeed.gather_size": ("parallel.engine.gather_size=1", zero, ON,
                              {**SECOND, "allgather_bucket_size": 2**18}),
    "DeepSpeed.persistence_threshold": ("parallel.engine.persistence_threshold=7", zero, THREE,
                                 {**THIRD, "stage3_param_persistence_threshold": 7}),
}  # fmt: skip
