"""The weights of a checkpoint, put into a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import nn

from setpoint.checkpoint.loading import Checkpoint
from setpoint.config import RunError
from setpoint.shapes.placed import Named, as_placed


def load_weights(model: nn.Module, checkpoint: Checkpoint, elsewhere: Collection[str] = ()) -> None:
    """Put a checkpoint's weights into a model, of which each rank may hold a part.

    Arguments:
        checkpoint: where it is one in part, weights that it lacks stay what they are.
        elsewhere: names of tensors that other ranks hold.

    Raises:
        RunError: if a tensor is missing, surplus, or of another shape, each named.
    """
    saved, own = checkpoint.tensors["model"], model.state_dict()
    if checkpoint.partial:
        own = {name: tensor for name, tensor in own.items() if name in saved}
    shapes = {name: tensor.shape for name, tensor in own.items()}
    refuse_misfits(checkpoint.path, shapes, saved, elsewhere)
    placed = {name: as_placed(saved[name], tensor) for name, tensor in own.items()}
    model.load_state_dict(placed, strict=not checkpoint.partial)


def refuse_misfits(
    path: Path, shapes: Mapping[str, torch.Size], saved: Named, elsewhere: Collection[str] = ()
) -> None:
    """Refuse weights that are not those of a model.

    Arguments:
        shapes: of the tensors of the model.
        elsewhere: names of tensors that other ranks hold.

    Raises:
        RunError: if a tensor is missing, surplus, or of another shape, each named.
    """
    wrong = [f"{name} is missing" for name in shapes if name not in saved]
    known = {*shapes, *elsewhere}
    wrong += [f"{name} is not in the model" for name in saved if name not in known]
    wrong += [
        f"{name} is {tuple(saved[name].shape)}, the model's is {tuple(shape)}"
        for name, shape in shapes.items()
        if name in saved and saved[name].shape != shape
    ]
    if wrong:
        shown = "; ".join(wrong[:2]) + (f"; and {len(wrong) - 2} more" if len(wrong) > 2 else "")
        raise RunError(f"{path} does not fit the model: {shown}")
