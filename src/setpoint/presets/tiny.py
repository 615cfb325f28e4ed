"""The preset `tiny`: a small model on real text, for a first run on any machine."""

from __future__ import annotations

from setpoint.config import preset
from setpoint.model.config import TransformerConfig
from setpoint.optim.config import AdamWConfig
from setpoint.optim.schedule import Cosine
from setpoint.precision.config import Precision
from setpoint.train.config import BatchConfig, Job
from setpoint.train.evaluation.config import Evaluation
from setpoint.units import Duration, Period


@preset
def tiny() -> Job:
    """A byte-level transformer on the standard library's source; about a minute on two cores."""
    return Job(
        name="tiny",
        duration=Duration("600 steps"),
        model=TransformerConfig(dim=128, layers=4, heads=2, kv_heads=1, tie_embeddings=True),
        batch=BatchConfig(global_size=8, sequence_length=256),
        optimizer=AdamWConfig(lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1),
        schedule=Cosine(floor=0.1),
        precision=Precision(compute="bf16"),
        evaluation=Evaluation(every=Period("200 steps"), sequences=320),
    )
