"""The build of Mistral 7B in small: a window slides in all layers.

Build: config.json of mistralai/Mistral-7B-v0.1 on Hugging Face; Mistral 7B, Jiang et al., 2023.
"""

from __future__ import annotations

from setpoint.config import Duration, Period, preset
from setpoint.model.config import Transformer
from setpoint.optim.config import AdamW, Cosine
from setpoint.train.batch import Batch
from setpoint.train.config import Evaluation, Job, Precision


@preset
def mistral_tiny() -> Job:
    """The build of Mistral 7B in small, on bytes of the standard library; half a minute.

    Returns:
        a new draft.
    """
    return Job(
        name="mistral-tiny",
        duration=Duration("200 steps"),
        model=Transformer(
            dim=128,
            layers=4,
            heads=4,
            kv_heads=1,
            ffn_dim=448,
            attention_pattern=("sliding",),
            sliding_window=64,
        ),
        batch=Batch(global_size=8, sequence_length=256),
        optimizer=AdamW(lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1),
        schedule=Cosine(floor=0.1),
        precision=Precision(compute="bf16"),
        evaluation=Evaluation(every=Period("100 steps"), sequences=80),
    )
