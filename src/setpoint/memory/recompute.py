"""A module that is recomputed in backward instead of saving what that needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

Contexts = Callable[[], tuple[Any, Any]]


def recompute(module: nn.Module, *, reentrant: bool = False, keep: Contexts | None = None) -> None:
    """Make a module keep its inputs only, and compute it again when gradients are wanted.

    Random numbers are drawn again as they were (dropout), and the format of autocast is that of the
    first time, so losses and gradients are those of the module as it was, to the last bit. Names of
    parameters do not change; a copy of the module computes with its own. Without gradients, as in
    evaluation, it runs as it was.

    Arguments:
        module: any module; it is changed in place.
        reentrant: use PyTorch's older implementation, a backward pass within the backward pass.
        keep: makes contexts for the first time and for the second, which keep the results of some
            operators; only without `reentrant`.
    """
    assert keep is None or not reentrant
    way = _reentrant if reentrant else partial(_again, keep)
    if "forward" in vars(module):  # it was replaced before
        module.forward = partial(_run, way, module.forward)
    else:
        module.__class__ = _again_class(type(module), reentrant, keep)


@lru_cache(maxsize=64)
def _again_class(kind: type[nn.Module], reentrant: bool, keep: Contexts | None) -> type[nn.Module]:
    """A class that differs from another in how it is called.

    One for all layers that are alike, and nothing on the modules themselves: so compilers make one
    piece of code for all, and copies of a module call themselves.
    """
    way = _reentrant if reentrant else partial(_again, keep)

    class Again(kind):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return _run(way, super().forward, *args, **kwargs)

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Again, name, getattr(kind, name))
    return Again


def _run(way: Callable[..., Any], forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return way(forward, args, kwargs)


def _again(
    keep: Contexts | None, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
) -> Any:
    if keep is None:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=keep, **kwargs)


def _reentrant(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    # The older implementation sees only tensors that are arguments or results themselves, and
    # would cut the gradients of those in keywords, tuples and reports of experts.
    leaves, form = pytree.tree_flatten((args, kwargs))
    results: list[Any] = []

    def flat(_: Tensor, *given: Any) -> tuple[Any, ...]:
        inner_args, inner_kwargs = pytree.tree_unflatten(list(given), form)
        result, shape = pytree.tree_flatten(forward(*inner_args, **inner_kwargs))
        results[:] = [shape]
        return tuple(result)

    # Where no input needs a gradient, as behind a frozen embedding, it would leave out those of
    # the parameters, too.
    wanted = torch.empty(0, requires_grad=True)
    out = checkpoint(flat, wanted, *leaves, use_reentrant=True)
    return pytree.tree_unflatten(list(out), results[0])
