"""Norms by their import path."""

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError, call_component
from setpoint.model.initialize import Initializable, Values

if TYPE_CHECKING:
    from setpoint.model.norm.config import ImportedNorm


def build_imported(config: "ImportedNorm", *, dim: int, eps: float) -> nn.Module:
    """Make the norm of an `import` section, and try it on a vector.

    It is made on the CPU, whatever the default device, and its parameters start with the values
    that it gives them there, which survive the way through the meta device. What it draws it draws
    from a generator at its start, so that all ranks draw the same.

    Arguments:
        dim: size of the last axis; handed over as `dim` or `normalized_shape`.

    Raises:
        SetpointError: what the target makes is not a module that keeps the shape of vectors.
    """
    runtime = {"dim": dim, "normalized_shape": dim, "eps": eps}
    title = f"model.norm.target = {config.target}"
    # Making and trying it must not change what random numbers come next.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.default_generator.manual_seed(0)
        norm = call_component(config, (), runtime, optional=tuple(runtime))
        if not isinstance(norm, nn.Module):
            raise SetpointError(
                f"{title} makes a {type(norm).__name__}; it must make a torch module"
            )
        try:
            tried = norm(torch.zeros(1, 2, dim))
        except Exception as error:
            raise SetpointError(
                f"{title} cannot be called with (..., {dim}) vectors: "
                f"{type(error).__name__}: {error}"
            ) from error
    if not isinstance(tried, Tensor) or tried.shape != (1, 2, dim):
        got = tuple(tried.shape) if isinstance(tried, Tensor) else type(tried).__name__
        raise SetpointError(f"{title} gives {got} for vectors of shape (1, 2, {dim})")
    if not isinstance(norm, Initializable):
        values = {name: Values(tensor.detach().clone()) for name, tensor in norm.named_parameters()}
        norm.initializers = partial(dict, values)  # pyright: ignore[reportArgumentType]
    return norm.to(torch.get_default_device())
