"""Count the parameters a module really has."""

from torch import nn


def count_parameters(module: nn.Module, *, trainable_only: bool = False) -> int:
    """Count the elements of all parameters, each shared parameter once.

    Arguments:
        module: any module; sharded parameters count whole.
        trainable_only: leave out those that take no gradient.

    Returns:
        The number of elements.
    """
    return sum(
        parameter.numel()
        for parameter in module.parameters()
        if parameter.requires_grad or not trainable_only
    )
