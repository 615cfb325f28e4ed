"""Count the parameters a module really has."""

from torch import nn


def count_parameters(module: nn.Module) -> int:
    """Count the elements of all parameters, each shared parameter once.

    Arguments:
        module: any module; sharded parameters count whole.
    """
    return sum(parameter.numel() for parameter in module.parameters())
