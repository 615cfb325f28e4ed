"""Cross-section check of `checkpoint.export`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem, SetpointError
from setpoint.model.config import HuggingFaceModel, Transformer

if TYPE_CHECKING:
    from setpoint.train.config import Job


def export_problems(job: Job) -> Iterator[Problem]:
    """Find models that transformers has no word for."""
    from setpoint.model.pretrained.write_config import family_for

    if isinstance(job.model, HuggingFaceModel):
        return
    also, hint = ("model",), "Set checkpoint.export = null, or change the model."
    if not isinstance(job.model, Transformer):
        kind = type(job.model).__setpoint__.tag
        yield Problem("checkpoint.export", f"a model of type = {kind} cannot be written in the "
                      "format of Hugging Face", valid=("null",), also=also, hint=hint)  # fmt: skip
        return
    try:
        family_for(job.model)
    except SetpointError as error:
        yield Problem("checkpoint.export", str(error), valid=("null",), also=also, hint=hint)
