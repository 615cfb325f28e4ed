"""Activation checkpointing: recomputation of layers or parts of layers, and saved results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from setpoint.config import SetpointError
from setpoint.shapes.peers import Messages, saved

if TYPE_CHECKING:
    from setpoint.memory.config import CheckpointedParts, CheckpointingConfig, Full, Operators

    # They have no public names.
    FirstPass = SecondPass = Any
else:
    FirstPass, SecondPass = map(type, create_selective_checkpoint_contexts([]))


Layers = Sequence[tuple[str, nn.Module]]
Contexts = Callable[[], tuple[Any, Any]]

NAMES = {
    "attention": ("attention", "self_attn", "attn", "self_attention"),
    "feed_forward": ("feed_forward", "mlp", "ffn", "block_sparse_moe"),
}
"""Names of the parts of a layer: Setpoint's, then those of other libraries."""


def full(config: Full, layers: Layers) -> None:
    """Recompute whole layers in the backward pass (Chen et al., 2016).

    Arguments:
        layers: layers of the model, by name, in order; changed in place.

    Raises:
        SetpointError: there are no layers.
    """
    for _, layer in _chosen(config, layers):
        recompute(layer, reentrant=config.reentrant)


def parts(config: CheckpointedParts, layers: Layers) -> None:
    """Recompute the attention or the feed-forward network of layers in the backward pass.

    Raises:
        SetpointError: there are no layers, or a layer has no submodule with a known name.
    """
    modules = [
        _part(name, layer, part)
        for name, layer in _chosen(config, layers)
        for part in dict.fromkeys(config.parts)
    ]
    for module in modules:  # all exist
        recompute(module, reentrant=config.reentrant)


def operators(config: Operators, layers: Layers) -> None:
    """Save the results of some operators in layers, and recompute all others.

    Raises:
        SetpointError: there are no layers.
    """
    keep = partial(contexts, config.save, config.matmul_every)
    for _, layer in _chosen(config, layers):
        recompute(layer, keep=keep)


def _chosen(config: CheckpointingConfig, layers: Layers) -> Layers:
    if not layers:
        raise SetpointError(
            "memory.activation_checkpointing: the model has no repeated layers in a list, "
            "dictionary or sequence of modules; set it to null"
        )
    return layers[:: config.every]


def _part(name: str, layer: nn.Module, part: str) -> nn.Module:
    for known in NAMES[part]:
        module = getattr(layer, known, None)
        if isinstance(module, nn.Module):
            return module
    children = ", ".join(key for key, _ in layer.named_children()) or "none"
    raise SetpointError(
        f"memory.activation_checkpointing.parts: the layer {name} ({type(layer).__name__}) has no "
        f"module named {' or '.join(NAMES[part])}; its modules: {children}\n"
        f"Valid: memory.activation_checkpointing.type = full, or operators"
    )


def recompute(module: nn.Module, *, reentrant: bool = False, keep: Contexts | None = None) -> None:
    """Make a module save only its inputs, and recompute it in the backward pass.

    Random numbers (dropout) and the autocast dtype are the same as in the first pass, so losses and
    gradients are bit-identical. Parameter names do not change; a copy of the module uses its own
    parameters. Without gradients, as in evaluation, nothing changes.

    Arguments:
        module: changed in place.
        reentrant: whether to use PyTorch's older implementation, with a backward pass inside the
            backward pass.
        keep: makes the contexts of the first and the second pass, which save the results of some
            operators; only without `reentrant`.
    """
    assert keep is None or not reentrant
    way = _reentrant if reentrant else partial(_not_reentrant, keep)
    if "forward" in vars(module):  # replaced before
        module.forward = partial(_run_module, way, module.forward)
    else:
        module.__class__ = _recomputed_class(type(module), reentrant, keep)


@lru_cache(maxsize=64)
def _recomputed_class(
    kind: type[nn.Module], reentrant: bool, keep: Contexts | None
) -> type[nn.Module]:
    """A subclass that recomputes its forward pass.

    All layers of a kind share one class, and the modules themselves carry no state, so that
    compilers make a single graph for all, and copies of a module call themselves.
    """
    way = _reentrant if reentrant else partial(_not_reentrant, keep)

    class Recomputed(kind):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return _run_module(way, super().forward, *args, **kwargs)

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Recomputed, name, getattr(kind, name))
    return Recomputed


def _run_module(
    way: Callable[..., Any], forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return way(forward, args, kwargs)


def _not_reentrant(
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

    # If no input needs a gradient, as after a frozen embedding, it would omit those of the
    # parameters, too.
    dummy = torch.empty(0, requires_grad=True)
    out = checkpoint(flat, dummy, *leaves, use_reentrant=True)
    return pytree.tree_unflatten(list(out), results[0])


MATMUL = frozenset(
    {
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::_grouped_mm",
        "aten::_scaled_mm",
        "aten::_scaled_mm_v2",
        "aten::_scaled_grouped_mm",
        "aten::_scaled_grouped_mm_v2",
        "setpoint::looped_product",
    }
)
"""Matrix products by their names in PyTorch; Setpoint's own takes one matrix per expert."""

ATTENTION = frozenset(
    {
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",
        "torch_attn::_varlen_attn",
        "flash_attn::_flash_attn_forward",
        "flash_attn::_flash_attn_varlen_forward",
        "flash_attn_3::_flash_attn_forward",
        "flash_attn_3::fwd",
        "flex_attention",
    }
)
"""Attention as one operator. Where it is composed, its matrix products count as such."""

SAVED = MATMUL | ATTENTION
"""Operators whose results can be saved."""


class _Selected(TorchDispatchMode):
    """Passes only the operators that may be saved on to selective checkpointing.

    Otherwise it counts calls of all operators, and refuses a second pass with more calls than the
    first, such as when FSDP2 gathers the experts within a layer at another time.
    """

    messages: Messages | None = None
    is_second = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_unread = self.messages is not None and self.messages.is_unread
        if (_name(func) in SAVED and not is_unread) or get_proxy_mode() is not None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Any:
        if self.messages is not None:
            self.messages.is_second = self.is_second
            self._token = saved.set(self.messages)
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        if self.messages is not None:
            saved.reset(self._token)
        return super().__exit__(*error)


class _First(_Selected, FirstPass):
    """The first pass, which saves results."""


class _Second(_Selected, SecondPass):
    """The second pass, which recomputes the rest."""

    is_second = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except RuntimeError as error:
            # A saved tensor was changed in place, as when experts of transformers add their biases.
            if not str(error).endswith("selective activation checkpoint has been mutated"):
                raise
            return func(*args, **(kwargs or {}))


def contexts(save: Collection[str], matmul_every: int) -> tuple[Any, Any]:
    """Make the contexts of the first and the second pass of a layer, for a `context_fn`.

    Arguments:
        save: kinds of operators; see `Operators.save`.
    """
    first: Any
    second: Any
    policy = partial(_policy, save, matmul_every, [0, 0])
    first, second = create_selective_checkpoint_contexts(policy)
    first.__class__, second.__class__ = _First, _Second
    if "exchange" in save:
        first.messages = second.messages = Messages()
    return first, second


def _policy(
    save: Collection[str],
    matmul_every: int,
    counts: list[int],
    context: SelectiveCheckpointContext,
    operator: Any,
    *args: Any,
    **kwargs: Any,
) -> CheckpointPolicy:
    # Counted separately in the two passes, since some versions of PyTorch ask in both.
    name = _name(operator)
    kept = False
    if name in MATMUL and "matmul" in save:
        kept = counts[context.is_recompute] % matmul_every == 0
        counts[context.is_recompute] += 1
    elif name in ATTENTION and "attention" in save:
        # With dropout it draws random numbers. Unless it draws them again, later operators in the
        # layer get different ones from the first pass.
        kept = not _dropout(operator, args, kwargs)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _name(operator: Any) -> str:
    schema = getattr(operator, "_schema", None)
    return operator.name() if schema is None else schema.name


def _dropout(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The dropout probability of an attention operator."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return 0.0  # flex attention has none
    for place, argument in enumerate(schema.arguments):
        if argument.name in ("dropout_p", "dropout"):
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            return float(given or 0.0)
    return 0.0
