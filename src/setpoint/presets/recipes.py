"""Settings shared by the presets of published models."""

from __future__ import annotations

from collections.abc import Callable

from setpoint.checkpoint.config import Checkpoint
from setpoint.compile.config import Compile
from setpoint.config import preset
from setpoint.data.config import Data, Loader
from setpoint.loss.config import ChunkedCrossEntropy
from setpoint.memory.config import CheckpointingConfig, Memory, Operators
from setpoint.model.config import TransformerConfig
from setpoint.optim.config import AdamWConfig
from setpoint.optim.schedule import Cosine
from setpoint.parallel.config import Parallel
from setpoint.precision.config import Precision
from setpoint.resilience.config import GarbageCollection, TrainingResilience
from setpoint.train.config import BatchConfig, Job
from setpoint.train.evaluation.config import Evaluation
from setpoint.units import Duration, Period


def sized(name: str, title: str, parameters: int, make: Callable[[str], Job]) -> Callable[[], Job]:
    """Register one size of a family as a preset.

    Arguments:
        make: function of the preset's name that returns a new draft.
    """

    def job() -> Job:
        return make(name)

    job.__name__ = job.__qualname__ = name.replace("-", "_")
    job.__module__ = make.__module__
    job.__doc__ = f"{title}: {parameters:,} parameters."
    return preset(job)


def published(
    name: str,
    model: TransformerConfig,
    batch: BatchConfig,
    *,
    lr: float,
    floor: float = 0.1,
    recompute: CheckpointingConfig | None = None,
) -> Job:
    """A model of a published shape, trained on GPUs in bf16 with AdamW and a cosine schedule.

    Weights are sharded over the ranks that other axes leave.

    Arguments:
        recompute: activation checkpointing; None: all but matrix products and attention.

    Returns:
        a new draft; data, tokenizer and duration are left to the user.
    """
    return Job(
        name=name,
        duration=Duration("1000 steps"),
        model=model,
        batch=batch,
        optimizer=AdamWConfig(lr=lr, betas=(0.9, 0.95), weight_decay=0.1),
        schedule=Cosine(floor=floor),
        loss=ChunkedCrossEntropy(),
        precision=Precision(compute="bf16"),
        memory=Memory(activation_checkpointing=recompute or Operators()),
        compile=Compile(),
        parallel=Parallel(shard=-1),
        data=Data(loader=Loader(workers=2)),
        evaluation=Evaluation(every=Period("500 steps"), sequences=64),
        checkpoint=Checkpoint(mode="async"),
        resilience=TrainingResilience(gc=GarbageCollection(every=Period("50 steps"))),
    )


def small(name: str, model: TransformerConfig, *, floor: float = 0.1) -> Job:
    """A small model on bytes of the standard library, for two cores and less than a minute."""
    return Job(
        name=name,
        duration=Duration("200 steps"),
        model=model,
        batch=BatchConfig(global_size=8, sequence_length=256),
        optimizer=AdamWConfig(lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1),
        schedule=Cosine(floor=floor),
        precision=Precision(compute="bf16"),
        evaluation=Evaluation(every=Period("100 steps"), sequences=80),
    )
