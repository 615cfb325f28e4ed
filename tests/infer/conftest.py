"""A run that has learnt something, made once for all tests of inference."""

from pathlib import Path

import pytest

from setpoint.infer.adopt import complete
from setpoint.infer.config import EvaluationTask, Inference, InferenceWeights
from setpoint.infer.loaded_model import LoadedModel, load
from setpoint.train.config import Job
from setpoint.train.run import train

from ..train.small import small_job


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """A run that has learnt that each symbol is followed by the next one."""
    job = small_job(
        tmp_path_factory.mktemp("run"), "duration=120 steps", "optimizer.lr=2e-2",
        "model.dim=32", "model.dropout=0", "batch.micro_size=8", "checkpoint.every=40 steps",
        "checkpoint.keep=null", "evaluation.every=40 steps", "evaluation.sequences=null",
    )  # fmt: skip
    return job, train(job).directory


@pytest.fixture(scope="session")
def loaded(trained: tuple[Job, Path]) -> LoadedModel:
    weights = InferenceWeights(path=str(trained[1]))
    return load(complete(Inference(weights=weights, evaluation=EvaluationTask())))
