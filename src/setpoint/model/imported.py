"""Models by their import path."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.config.foreign.construct import call
from setpoint.model.mode import evaluating

if TYPE_CHECKING:
    from setpoint.model.config import ImportedModel


def build_imported(config: "ImportedModel", vocab_size: int) -> nn.Module:
    """Make the model of an `import` section, and try it on two tokens.

    Arguments:
        config: the resolved section.
        vocab_size: number of tokens; handed over where the target takes it.

    Returns:
        The module, which has initialized itself.

    Raises:
        SetpointError: what the target makes is not a module that maps tokens to logits.
    """
    model = call(config, (), {"vocab_size": vocab_size}, optional=("vocab_size",))
    title = f"model.target = {config.target}"
    if not isinstance(model, nn.Module):
        raise SetpointError(f"{title} makes a {type(model).__name__}; it must make a torch module")
    # Trying it must not change what random numbers come next.
    with torch.random.fork_rng(devices=[]), torch.no_grad(), evaluating(model):
        try:
            logits = model(torch.zeros(1, 2, dtype=torch.int64))
        except Exception as error:
            raise SetpointError(
                f"{title} cannot be called with (B, S) int64 tokens: "
                f"{type(error).__name__}: {error}"
            ) from error
    wanted = (1, 2, vocab_size)
    if not isinstance(logits, Tensor) or logits.shape != wanted:
        got = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else "a "
        got = got if isinstance(logits, Tensor) else got + type(logits).__name__
        raise SetpointError(
            f"{title} gives {got} for tokens of shape (1, 2); it must give logits of shape {wanted}"
        )
    return model
