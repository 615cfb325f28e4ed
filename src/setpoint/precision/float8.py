"""Products of linear layers in float8, by torchao."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch
from torch import nn

from setpoint.config import SetpointError
from setpoint.precision.checks import converted, layer_problems

if TYPE_CHECKING:
    from setpoint.precision.config import Float8

CAPABILITY = (8, 9)
"""The first generation of Nvidia's GPUs with such products: Ada; Hopper is (9, 0)."""


def why_not(device: torch.device) -> str | None:
    """Say why there are no products in float8 here.

    Returns:
        the reason; None if there are.
    """
    if importlib.util.find_spec("torchao") is None:
        return "needs the package torchao: pip install 'setpoint[float8]'"
    if device.type != "cuda":
        return f"needs a GPU of Ada's or Hopper's age or newer, and the device is {device.type}"
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        return (
            f"needs a GPU of compute capability {'.'.join(map(str, CAPABILITY))} or more, and this "
            f"{torch.cuda.get_device_name(device)} has {'.'.join(map(str, found))}"
        )
    return None


def use_float8(config: Float8, model: nn.Module) -> None:
    """Let linear layers compute in float8, forward and backward; their weights stay what they are.

    Arguments:
        model: on its device, with its weights; its linear layers are replaced, and the names and
            the parameters stay.

    Raises:
        SetpointError: a pattern matches nothing, nothing is left, or sizes do not fit.
    """
    layers = {
        name: (module.out_features, module.in_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
    problems = [
        f"precision.float8{'.' * bool(problem.path)}{problem.path}: {problem.message}"
        for problem in layer_problems(config, layers)
    ]
    if problems:
        raise SetpointError("\n".join(problems))
    # It takes a second to import and says what it lacks, so only those who use it hear of it.
    float8 = importlib.import_module("torchao.float8")

    names = set(converted(config, layers))
    float8.convert_to_float8_training(
        model,
        module_filter_fn=lambda _, name: name in names,
        config=float8.Float8LinearConfig.from_recipe_name(config.recipe),
    )


def require_float8(device: torch.device) -> None:
    """Refuse a device without products in float8.

    Raises:
        SetpointError: with the reason.
    """
    if reason := why_not(device):
        raise SetpointError(f"precision.float8 {reason}\nValid: null")
