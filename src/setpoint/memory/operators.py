"""Which operators' results are kept when a layer is recomputed."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from setpoint.shapes.peers import Messages, saved

if TYPE_CHECKING:
    # They have no public names.
    FirstPass = SecondPass = Any
else:
    FirstPass, SecondPass = map(type, create_selective_checkpoint_contexts([]))

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
"""Products of matrices, by the names that PyTorch has for them; ours takes one per expert."""

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
    """Shows selective checkpointing only the operators that it may save.

    It counts calls of all operators otherwise, and refuses a second pass with more of them than the
    first had, as where FSDP2 gathers the experts within a layer at another time.
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
    """The pass that saves."""


class _Second(_Selected, SecondPass):
    """The pass that recomputes the rest."""

    is_second = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except RuntimeError as error:
            # What was saved was changed in place, as experts of transformers add their biases.
            if not str(error).endswith("selective activation checkpoint has been mutated"):
                raise
            return func(*args, **(kwargs or {}))


def contexts(save: Collection[str], matmul_every: int) -> tuple[Any, Any]:
    """Make the contexts of one pass through a layer: for the first time, and for the second.

    Arguments:
        save: kinds of operators, `matmul`, `attention` or `exchange`.

    Returns:
        what `torch.utils.checkpoint` takes from a context_fn.
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
    # Counted apart in the two passes, which some versions of PyTorch both ask for.
    name = _name(operator)
    kept = False
    if name in MATMUL and "matmul" in save:
        kept = counts[context.is_recompute] % matmul_every == 0
        counts[context.is_recompute] += 1
    elif name in ATTENTION and "attention" in save:
        # With dropout it draws random numbers. Unless it draws them again, those behind it in the
        # layer get others than the first time.
        kept = not _dropout(operator, args, kwargs)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _name(operator: Any) -> str:
    schema = getattr(operator, "_schema", None)
    return operator.name() if schema is None else schema.name


def _dropout(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The probability that an attention operator drops a weight with."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return 0.0  # flex attention has none
    for place, argument in enumerate(schema.arguments):
        if argument.name in ("dropout_p", "dropout"):
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            return float(given or 0.0)
    return 0.0
