"""The engine DeepSpeed, from the sections of a job that decide it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from setpoint.parallel.engines import DeepSpeed

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from setpoint.parallel.world import World
    from setpoint.parallel.zero import ZeroReplicas
    from setpoint.train.config import Job


def zero_settings(job: Job) -> dict[str, Any] | None:
    """Derive DeepSpeed's JSON; None where another engine trains."""
    engine = job.parallel.engine
    if not (job.parallel.uses_deepspeed and isinstance(engine, DeepSpeed)):
        return None
    return engine.settings(
        bucket_size=job.parallel.bucket_size,
        micro_size=job.batch.micro_size,
        accumulation=job.batch.accumulation,
        clip_norm=job.optimizer.clip_norm,
    )


def build_zero(
    job: Job, world: World, model: nn.Module, optimizer: Optimizer
) -> ZeroReplicas | None:
    """Let DeepSpeed divide a model and its optimizer; None where another engine trains.

    Raises:
        SetpointError: DeepSpeed cannot be loaded.
    """
    settings = zero_settings(job)
    if settings is None or world.size == 1:
        return None
    # Imported here: they need torch, and `check --plan` the settings alone.
    from setpoint.parallel.zero import ZeroReplicas
    from setpoint.precision.autocast import compute_in

    formats = job.precision
    computing = partial(compute_in, formats.compute, formats.params, world.device)
    return ZeroReplicas(settings, world, model, optimizer, computing)
