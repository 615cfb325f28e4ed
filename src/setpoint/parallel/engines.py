"""The section `[parallel.engine]`: PyTorch, or DeepSpeed with its JSON settings."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, Literal

from setpoint.config import RUNTIME, Config, Problem, dead, field, rule

FP32 = 4
"""Bytes of a number: DeepSpeed counts the sizes of messages in numbers, which are fp32 here."""


class EngineConfig(Config, role=RUNTIME):
    """Data-parallel engine."""


class Torch(EngineConfig, type="torch"):
    """PyTorch: DDP for replicas; FSDP2 and DTensor for what the other axes divide."""


class DeepSpeed(EngineConfig, type="deepspeed"):
    """DeepSpeed's ZeRO: replicas divide optimizer state, gradients and weights among themselves."""

    stage: int = field(default=2, ge=1, le=3)
    """ZeRO stage (Rajbhandari et al., 2020): 1 divides the optimizer state, 2 also the gradients,
    and 3 also the weights, which are gathered module by module."""

    offload: Literal["none", "optimizer", "all"] = "none"
    """Offload to host memory. optimizer: optimizer state and fp32 weights, which are updated there
    (ZeRO-Offload); all: the divided weights, too, in stage 3."""

    overlap: bool | None = None
    """Sum gradients during the backward pass (overlap_comm); null: in stage 3."""

    contiguous_gradients: bool = True
    """Copy gradients into one buffer of `parallel.bucket_size` as they are computed, and sum them
    there; false: each bucket is assembled when it is sent."""

    gather_size: float = field(default=200.0, gt=0, lt=inf)
    """MiB of weights that ranks gather in one message: after the update in stages 1 and 2
    (allgather_bucket_size), ahead of their modules in stage 3 (stage3_prefetch_bucket_size)."""

    persistence_threshold: int = field(default=100_000, ge=0)
    """Largest number of elements of a weight that each rank keeps whole in stage 3
    (stage3_param_persistence_threshold)."""

    @dead("persistence_threshold")
    def _persistence_is_dead(self) -> str | None:
        return "weights are not divided (stage = 1, 2)" if self.stage < 3 else None

    @rule
    def _check_offload(self) -> Iterator[Problem]:
        if self.offload == "all" and self.stage < 3:
            yield Problem(
                "offload",
                f"all offloads sharded weights, but stage {self.stage} does not shard them",
                valid=("none", "optimizer"),
                also=("stage",),
                hint="Or shard them: stage = 3.",
            )

    def settings(
        self, *, bucket_size: float, micro_size: int, accumulation: int, clip_norm: float | None
    ) -> dict[str, Any]:
        """Derive DeepSpeed's JSON settings; omitted keys keep DeepSpeed's defaults.

        Arguments:
            bucket_size: MiB of gradients summed in one message.
            micro_size: sequences of a micro-batch on each rank.
        """
        zero: dict[str, Any] = {
            "stage": self.stage,
            "contiguous_gradients": self.contiguous_gradients,
            "reduce_bucket_size": _elements(bucket_size),
        }
        if self.overlap is not None:
            zero["overlap_comm"] = self.overlap
        if self.stage == 3:
            zero["stage3_prefetch_bucket_size"] = _elements(self.gather_size)
            zero["stage3_param_persistence_threshold"] = self.persistence_threshold
        else:
            zero["allgather_bucket_size"] = _elements(self.gather_size)
        if self.offload != "none":
            zero["offload_optimizer"] = {"device": "cpu"}
        if self.offload == "all":
            zero["offload_param"] = {"device": "cpu"}
        return {
            "train_micro_batch_size_per_gpu": micro_size,
            "gradient_accumulation_steps": accumulation,
            "gradient_clipping": clip_norm or 0.0,
            "zero_optimization": zero,
            # The optimizer is Setpoint's, regardless of where its state is.
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }


def _elements(mebibytes: float) -> int:
    return max(2, 2 * (int(mebibytes * 2**20) // FP32 // 2))  # DeepSpeed aligns by two


def zero_settings(job: Any) -> dict[str, Any] | None:
    """Derive a job's DeepSpeed JSON settings; None if another engine trains it."""
    engine = job.parallel.engine
    if not (job.parallel.uses_deepspeed and isinstance(engine, DeepSpeed)):
        return None
    return engine.settings(
        bucket_size=job.parallel.bucket_size,
        micro_size=job.batch.micro_size,
        accumulation=job.batch.accumulation,
        clip_norm=job.optimizer.clip_norm,
    )
