"""The weights of a checkpoint, put into a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from setpoint.checkpoint.divided import Divided
from setpoint.checkpoint.loading import Checkpoint
from setpoint.config import RunError
from setpoint.files.threads import in_threads
from setpoint.shapes.placed import Named, Placeable, put


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
    put_all([(tensor, saved[name]) for name, tensor in own.items()])


def put_all(pairs: Sequence[tuple[Tensor, Tensor | Placeable]]) -> None:
    """Copy into tensors what they hold of full ones; what is read from files, several at a time."""
    read = [pair for pair in pairs if isinstance(pair[1], Divided)]
    in_threads(lambda number: put(*read[number]), len(read))
    for into, full in pairs:
        if not isinstance(full, Divided):
            put(into, full)


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
