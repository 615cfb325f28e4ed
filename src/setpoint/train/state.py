"""Everything a checkpoint holds, and how a loop gets it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from setpoint.checkpoint.loading import Checkpoint
from setpoint.checkpoint.optimizer_state import capture_optimizer, restore_optimizer
from setpoint.checkpoint.rng import capture_rng, restore_rng
from setpoint.checkpoint.weights import load_weights
from setpoint.config import RunError
from setpoint.train.build import Parts
from setpoint.train.position import Position

Tensors = dict[str, Mapping[str, Tensor]]


def capture(parts: Parts, position: Position) -> tuple[Tensors, dict[str, Any]]:
    """Take all that the rest of the run depends on.

    Arguments:
        parts: the objects of the job.
        position: how far the run has come.

    Returns:
        tensors by file stem (`model`, `optimizer`, `rng`), and the rest as JSON has it.
    """
    moments, optimizer = capture_optimizer(parts.optimizer, parts.model.named_parameters())
    noise, rng = capture_rng()
    tensors: Tensors = {"model": parts.model.state_dict(), "optimizer": moments, "rng": noise}
    state = {
        "position": asdict(position),
        "optimizer": optimizer,
        "rng": rng,
        "loader": parts.loader.state_dict(),
        "scaler": parts.scaler.state_dict(),
    }
    return tensors, state


def restore(parts: Parts, checkpoint: Checkpoint, renewed: Sequence[str] = ()) -> Position:
    """Bring the objects of a job to where they were when a checkpoint was saved.

    Arguments:
        parts: freshly built objects.
        checkpoint: as loaded, with its checksums verified.
        renewed: options of the optimizer's groups that keep the value they were built with.

    Returns:
        the position to go on from.

    Raises:
        SetpointError: if the checkpoint belongs to another model, optimizer or data.
    """
    state = checkpoint.state
    built = [dict(group) for group in parts.optimizer.param_groups]
    # The loader refuses other data before anything has been changed.
    parts.loader.load_state_dict(state["loader"])
    load_weights(parts.model, checkpoint)
    restore_optimizer(
        parts.optimizer,
        parts.model.named_parameters(),
        checkpoint.tensors["optimizer"],
        state["optimizer"],
    )
    for group, fresh in zip(parts.optimizer.param_groups, built, strict=True):
        group.update({name: fresh[name] for name in renewed if name in fresh})
    parts.scaler.load_state_dict(state["scaler"])
    missing = restore_rng(checkpoint.tensors["rng"], state["rng"])
    if missing:
        raise RunError(
            f"{checkpoint.path}: it holds the random state of {', '.join(missing)}, which this "
            f"process does not have; the run cannot go on exactly where it was"
        )
    return Position(**state["position"])
