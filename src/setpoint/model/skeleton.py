"""Models without memory, whose parameters are made when their values are at hand."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from setpoint.shapes.stored import stored_parts

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


def materialize(module: nn.Module, device: torch.device | str, dtype: torch.dtype) -> None:
    """Give all that lies on the meta device memory, whose content is anything.

    Arguments:
        dtype: of parameters; buffers, and parts of quantized weights, keep theirs.

    As `nn.Module.to_empty`, which imports a third of a second of code for plain tensors.
    """
    keep = {id(part) for part in stored_parts(module).values()}

    def made(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor.to(device)
        casts = isinstance(tensor, nn.Parameter) and id(tensor) not in keep
        wanted = dtype if casts else tensor.dtype
        if type(tensor) in (Tensor, nn.Parameter):
            return torch.empty(tensor.shape, dtype=wanted, device=device)
        return torch.empty_like(tensor, dtype=wanted, device=device)

    module._apply(made)


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Move a model to a device but for its parameters, which FSDP2 keeps on the host."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
