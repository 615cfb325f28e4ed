"""Evaluation and checkpoints at averaged weights, of schedule-free optimizers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.loading import LoadedCheckpoint, load_directory
from setpoint.infer.adopt import complete
from setpoint.infer.config import Inference, InferenceWeights
from setpoint.infer.loaded_model import load
from setpoint.infer.tasks import Generation
from setpoint.train.build.components import Components, build_components
from setpoint.train.evaluation.scores import (
    TRAINING,
    evaluate,
    evaluation_point,
    restore_training_weights,
)
from setpoint.train.run import train
from setpoint.train.run_state import restore

from ..support.tensors import read, same_tensors
from .small import rows, small_job, states, stepped

FREE = ("optimizer=schedule_free_adamw", "optimizer.lr=0.05", "schedule=constant",
        "duration=6 steps", "model.dropout=0")  # fmt: skip
MASTERS = ("precision.params=bf16", "precision.compute=bf16", "precision.master=fp32")
FORMATS = [(), MASTERS]


def weights(components: Components) -> dict[str, Tensor]:
    """The weights of the model."""
    return {name: p.detach().clone() for name, p in components.model.named_parameters()}


def held(components: Components) -> dict[str, Tensor]:
    """The weights that the optimizer updates."""
    return {name: p.detach().clone() for name, p in components.weights.named_parameters()}


def newest(folder: Path) -> LoadedCheckpoint:
    return load_directory(list(list_checkpoints(folder / "checkpoints").values())[-1])


@pytest.mark.parametrize("formats", FORMATS)
def test_the_model_has_the_average_within_and_its_own_weights_after(
    formats: tuple[str, ...], tmp_path: Path
) -> None:
    components = stepped(small_job(tmp_path, *FREE, *formats))
    model, updated = weights(components), held(components)
    with evaluation_point(components) as training:
        assert same_tensors(read(training), updated)
        assert not same_tensors(weights(components), model)
        for name, p in components.weights.named_parameters():
            beta = 0.9
            z = components.optimizer.state[p]["z"]
            x = updated[name] + (z - updated[name]) * (1 - 1 / beta)
            torch.testing.assert_close(p.detach(), x, rtol=1e-5, atol=1e-6)
            # The model's weights follow the masters.
            assert torch.equal(weights(components)[name], p.detach().to(model[name].dtype))
    assert same_tensors(weights(components), model) and same_tensors(held(components), updated)


def test_weights_come_back_when_an_evaluation_fails(tmp_path: Path) -> None:
    components = stepped(small_job(tmp_path, *FREE, *MASTERS))
    model, updated = weights(components), held(components)
    with pytest.raises(RuntimeError, match="full"), evaluation_point(components):
        raise RuntimeError("the disk is full")
    assert same_tensors(weights(components), model) and same_tensors(held(components), updated)


def test_evaluation_is_at_the_average_and_changes_nothing(tmp_path: Path) -> None:
    job = small_job(tmp_path, *FREE)
    components = stepped(job)
    before = weights(components)
    scores = evaluate(job, components)
    assert same_tensors(weights(components), before)
    with evaluation_point(components) as training:
        average = weights(components)
    restore_training_weights(components, average)
    # A twin that holds the average and has no other point has the same score.
    components.optimizer.state.clear()
    assert evaluate(job, components) == scores
    restore_training_weights(components, training)
    assert same_tensors(weights(components), before) and evaluate(job, components) != scores


@pytest.mark.parametrize("formats", FORMATS)
def test_a_checkpoint_holds_both_points(formats: tuple[str, ...], tmp_path: Path) -> None:
    run = train(small_job(tmp_path, *FREE, *formats))
    saved = newest(run.directory)
    # Here the model is where it was trained last.
    model, updated = weights(run.components), held(run.components)
    with evaluation_point(run.components):
        assert same_tensors(read(saved.tensors["model"]), weights(run.components))
    training = saved.tensors["master" if "precision.master=fp32" in formats else TRAINING]
    assert same_tensors(read(training), updated)
    assert ("master" in saved.tensors) != (TRAINING in saved.tensors)
    job = small_job(tmp_path, *FREE, *formats)
    fresh = build_components(job)
    restore(job, states(job, fresh), saved)
    assert same_tensors(weights(fresh), model) and same_tensors(held(fresh), updated)


def test_generation_and_evaluation_use_the_average(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, *FREE))
    choice = InferenceWeights(path=str(run.directory), checkpoint="latest")
    loaded = load(complete(Inference(weights=choice, generation=Generation(prompts=("x",)))))
    with evaluation_point(run.components):
        average = weights(run.components)
    used = {name: p.detach() for name, p in loaded.model.named_parameters()}
    assert same_tensors(used, average)
    # The score of the last row is that of these weights.
    (*_, last) = [row for row in rows(run.directory) if row["kind"] == "evaluation"]
    job = small_job(tmp_path, *FREE)
    twin = build_components(job)
    restore_training_weights(twin, used)
    score = evaluate(job, twin)["held_out"]
    assert score.loss == pytest.approx(last["held_out_loss"], rel=1e-6)
