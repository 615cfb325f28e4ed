"""Models by their import path."""

from typing import TYPE_CHECKING

from torch import nn

from setpoint.config import call_component
from setpoint.model.build import require_language_model

if TYPE_CHECKING:
    from setpoint.model.config import ImportedModel


def build_imported(config: "ImportedModel", vocab_size: int) -> nn.Module:
    """Make the model of an `import` section, and try it on two tokens.

    Arguments:
        vocab_size: number of tokens; handed over where the target takes it.

    Raises:
        SetpointError: what the target makes is not a module that maps tokens to logits.
    """
    model = call_component(config, (), {"vocab_size": vocab_size}, optional=("vocab_size",))
    require_language_model(model, f"model.target = {config.target}", vocab_size)
    return model
