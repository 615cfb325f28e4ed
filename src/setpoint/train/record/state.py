"""Everything a checkpoint holds, and how a loop gets it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor, dtype

from setpoint.checkpoint.loading import Checkpoint
from setpoint.checkpoint.optimizer_state import capture_optimizer, restore_optimizer
from setpoint.checkpoint.rng import capture_rng, restore_rng
from setpoint.checkpoint.weights import load_weights
from setpoint.config import RunError, SetpointError
from setpoint.optim.build import title_of
from setpoint.precision.build import convert_state
from setpoint.train.build.components import Components
from setpoint.train.config import Job
from setpoint.train.step.averaging import TRAINING, go_on_from
from setpoint.train.step.position import Position, is_over

WEIGHTS_ONLY = "weights_only"
"""What the state of a checkpoint says that no run goes on from."""

Tensors = dict[str, Mapping[str, Tensor]]


def capture(
    parts: Components, position: Position, training: Mapping[str, Tensor] | None = None
) -> tuple[Tensors, dict[str, Any]]:
    """Take all that the rest of the run depends on.

    Arguments:
        training: what `evaluation_point` gives, within which this is called.

    Returns:
        tensors by file stem (`model`, `optimizer`, `rng`, `master` where the optimizer updates
        other weights than the model's, and `training` where it updates them at another point),
        and the rest as JSON has it.
    """
    moments, optimizer = capture_optimizer(
        parts.optimizer, parts.weights.named_parameters(), parts.options
    )
    noise, rng = capture_rng()
    tensors: Tensors = {"model": parts.model.state_dict(), "optimizer": moments, "rng": noise}
    if master := parts.weights.state():
        # The model is never evaluated with these, so that they can be those that are trained.
        tensors["master"] = {**master, **(training or {})}
    elif training:
        tensors[TRAINING] = training
    state = {
        "position": asdict(position),
        "optimizer": optimizer,
        "rng": rng,
        "loader": parts.loader.state_dict(),
        "schedule": parts.schedule.state_dict(),
        "scaler": parts.scaler.state_dict(),
    }
    return tensors, state


def restore(
    job: Job, parts: Components, checkpoint: Checkpoint, other_data: bool = False
) -> Position:
    """Bring the objects of a job to where they were when a checkpoint was saved.

    Options and formats are those of the configuration: the checkpoint gives what was counted.

    Raises:
        SetpointError: if the checkpoint belongs to another model, optimizer or data.
    """
    state = checkpoint.state
    if state.get(WEIGHTS_ONLY):
        position = Position(**state["position"])
        if not is_over(job.duration, position):
            raise SetpointError(
                f"{checkpoint.path} holds the weights alone (checkpoint.last = weights), and no "
                f"run goes on from these. Move it away to go on from the checkpoint before it, if "
                f"there is one, or train a run of its own that starts from them"
            )
        load_weights(parts.model, checkpoint)
        return position
    # The loader refuses other data before anything has been changed.
    parts.loader.load_state_dict(state["loader"], other_data)
    load_weights(parts.model, checkpoint)
    saved = {**checkpoint.tensors["model"], **checkpoint.tensors.get("master", {})}
    parts.weights.load(saved)
    go_on_from(parts, checkpoint.tensors.get(TRAINING, {}))
    restore_optimizer(
        parts.optimizer,
        parts.weights.named_parameters(),
        checkpoint.tensors["optimizer"],
        state["optimizer"],
    )
    others: dict[Tensor, dtype] | None = None
    if title_of(job.optimizer) is not None:
        others = {held: saved[name].dtype for name, held in parts.weights.named_parameters()}
    convert_state(job.precision, parts.optimizer, others)
    # Checkpoints of older versions have none, and no schedule that would need it.
    parts.schedule.load_state_dict(state.get("schedule", {}))
    parts.scaler.load_state_dict(state["scaler"])
    missing = restore_rng(checkpoint.tensors["rng"], state["rng"])
    if missing:
        raise RunError(
            f"{checkpoint.path}: it holds the random state of {', '.join(missing)}, which this "
            f"process does not have; the run cannot go on exactly where it was"
        )
    return Position(**state["position"])
