"""Models without memory, whose parameters are made when their values are at hand."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from setpoint.model.config import ModelConfig


class _NoInitialization(TorchFunctionMode):
    """Leaves out what torch's modules draw when they are made.

    On the meta device it would draw nothing either, but import seconds of code to do so.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given: dict[str, Any] = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def skeleton(config: "ModelConfig", vocab_size: int) -> nn.Module:
    """Build a transformer on the meta device."""
    with torch.device("meta"), _NoInitialization():
        return config.build(vocab_size=vocab_size)
