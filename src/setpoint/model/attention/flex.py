"""FlexAttention: one compiled kernel for any mask, which skips masked blocks."""

import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

from setpoint.config import SetpointError
from setpoint.model.attention.backends import (
    PLAIN,
    Backend,
    RowLayout,
    Scores,
    add_sinks,
    visibility,
)
from setpoint.model.attention.config import Backend as BackendName

# Nothing is compiled before the first call.
_compiled: Any = torch.compile(flex_attention)
# Uncompiled, it temporarily allocates the whole S x L mask.
_compiled_blocks: Any = torch.compile(create_block_mask)


class Flex(Backend):
    """`torch.nn.attention.flex_attention`, compiled on a GPU (Dong et al., 2024)."""

    name: BackendName = "flex"

    def prepare_mask(self, layout: RowLayout, window: int | None) -> BlockMask:
        """Make the block mask."""
        if layout.positions is None and layout.documents is None:
            return _plain_blocks(layout.queries, layout.keys, window, layout.device)
        rows = [x.shape[0] for x in (layout.positions, layout.documents) if x is not None]
        return _blocks(layout, window, max(rows))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scores: Scores = PLAIN
    ) -> Tensor:
        """Run the kernel.

        Raises:
            SetpointError: gradients are required on a CPU.
        """
        assert scores.dropout == 0.0
        if query.device.type == "cpu" and torch.is_grad_enabled() and query.requires_grad:
            raise SetpointError(
                "model.attention_backend = flex: PyTorch has no backward pass for it on the CPU; "
                "use sdpa or eager to train on a CPU"
            )
        attend = _compiled if query.is_cuda else _interpreted
        more: Any = {} if scores.sinks is None else {"return_aux": AuxRequest(lse=True)}
        mixed = attend(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            score_mod=None if scores.soft_cap is None else capping(scores.soft_cap),
            block_mask=mask,
            scale=scores.scale,
            enable_gqa=query.shape[2] != key.shape[2],
            **more,
        )
        if scores.sinks is not None:
            mixed, aux = mixed
            mixed = add_sinks(mixed, aux.lse, scores.sinks)
        return mixed.transpose(1, 2)


@cache
def capping(soft_cap: float) -> Callable[..., Tensor]:
    """The function that caps scores; one per cap value, so that it is compiled only once."""

    def cap(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.tanh(score / soft_cap) * soft_cap

    return cap


@lru_cache(maxsize=16)
def _plain_blocks(queries: int, keys: int, window: int | None, device: torch.device) -> BlockMask:
    """A mask that depends only on sizes, cached across steps."""
    layout = RowLayout(queries=queries, keys=keys, batch=1, device=device)
    # Tensors of inference mode could not take part in training later.
    with torch.inference_mode(False):
        return _blocks(layout, window, 1)


def _blocks(layout: RowLayout, window: int | None, rows: int) -> BlockMask:
    sees, first = visibility(layout, window), layout.keys - layout.queries

    def mask_mod(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return sees(row, query + first, key)

    make: Any = _compiled_blocks if layout.device.type == "cuda" else create_block_mask
    sizes = (layout.queries, layout.keys)
    return make(mask_mod, rows if rows > 1 else None, None, *sizes, device=layout.device)


def _interpreted(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    with warnings.catch_warnings():
        # It recommends compilation, which gains little on a CPU and needs a C++ compiler.
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return flex_attention(query, key, value, **options)
