"""Parameter groups: which parameters decay."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from setpoint.config import SetpointError

Named = tuple[str, nn.Parameter]


def decay_groups(parameters: Iterable[Named], weight_decay: float) -> list[dict[str, Any]]:
    """Split parameters into those that decay and those that do not.

    Matrices (two dimensions and more, embeddings among them) decay; norm weights and biases do
    not: they have no scale that decay could keep in check.

    Arguments:
        parameters: (qualified name, parameter) pairs, as from `module.named_parameters()`; frozen
            ones are left out.
        weight_decay: for the group that decays.

    Returns:
        One or two groups for a torch optimizer, each with its `name` ("decay" or "no_decay");
        parameters are given with their names, which torch keeps in the group as `param_names`.

    Raises:
        SetpointError: nothing is trainable.
    """
    trainable = [(name, tensor) for name, tensor in parameters if tensor.requires_grad]
    if not trainable:
        raise SetpointError(
            "there is nothing to train: all parameters are frozen; at least one must be trainable"
        )
    groups = (
        ("decay", weight_decay, [pair for pair in trainable if pair[1].ndim >= 2]),
        ("no_decay", 0.0, [pair for pair in trainable if pair[1].ndim < 2]),
    )
    return [
        {"name": name, "params": pairs, "weight_decay": decay}
        for name, decay, pairs in groups
        if pairs
    ]
