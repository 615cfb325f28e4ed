"""The preset `answers`: an adapter teaches the model of `tiny` to answer questions."""

from __future__ import annotations

from setpoint.adapter.config import LoRA
from setpoint.config import preset
from setpoint.data.config import Data
from setpoint.data.sources.config import Questions
from setpoint.presets.tiny import tiny
from setpoint.train.config import BatchConfig, Job
from setpoint.train.evaluation.config import Evaluation
from setpoint.units import Duration, Period


@preset
def answers() -> Job:
    """LoRA on a base from tiny (--model.pretrained RUN) that learns to answer; about a minute."""
    job = tiny()
    job.name = "answers"
    job.duration = Duration("400 steps")
    job.batch = BatchConfig(global_size=8, sequence_length=128)
    job.optimizer.lr = 2e-3
    job.adapter = LoRA(rank=16, alpha=64)
    job.data = Data(sources=(Questions(),))
    job.evaluation = Evaluation(
        every=Period("100 steps"), sequences=32, before_training=True, accuracy=True
    )
    return job
