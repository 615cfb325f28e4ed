"""Experts: feed-forward networks, each for the rows that were sent to it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.model.autocast import cast_once
from setpoint.model.feed_forward import FeedForward, activation
from setpoint.model.initialize import Initializer, Normal, PerExpert
from setpoint.model.moe.assign import Assignments
from setpoint.model.moe.grouped_experts import ExpertKernels, Product, grouped_experts
from setpoint.model.moe.product import (
    grouped_gradient,
    grouped_product,
    looped_gradient,
    looped_product,
    why_not_grouped,
)
from setpoint.model.moe.rows import gather, scale_gradient, spread
from setpoint.model.scale import hidden_std, residual_std
from setpoint.shapes.placed import part_here

if TYPE_CHECKING:
    from setpoint.model.config import Transformer as TransformerConfig


class PackedExperts(nn.Module):
    """All experts in one tensor for each projection, (E, in, out); without biases.

    Where ranks divide them, those of this rank: the tensors are DTensors, of which it has a part.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        assert config.moe is not None
        self.implementation = config.moe.implementation
        self.std, self.down_std = hidden_std(config), residual_std(config)
        self.activation = activation(config.activation)
        count, dim, inner = config.moe.experts, config.dim, config.moe.width(config.ffn_dim)
        self.gate = nn.Parameter(torch.empty(count, dim, inner)) if config.is_gated else None
        self.up = nn.Parameter(torch.empty(count, dim, inner))
        self.down = nn.Parameter(torch.empty(count, inner, dim))
        self.adapter: nn.Module | None = None
        """Changes the products with some projections; see `setpoint.adapter`."""

    def initializers(self) -> dict[str, Initializer]:
        """Return how each projection starts: each expert as if it were a module by itself."""
        return {
            name: PerExpert(Normal(self.down_std if name == "down" else self.std))
            for name, _ in self.named_parameters(recurse=False)
        }

    def widths(self) -> dict[str, int]:
        """Return the dimension of the inner width of each projection."""
        names = [name for name, _ in self.named_parameters(recurse=False)]
        return {name: 1 if name == "down" else 2 for name in names}

    def forward(
        self, x: Tensor, weights: Tensor, assigned: Assignments, factors: Tensor | None = None
    ) -> Tensor:
        """Add up what the chosen experts make of each token.

        Arguments:
            factors: (R,) what gradients through each row are multiplied by; None: nothing.

        Raises:
            SetpointError: the grouped matrix product is demanded where there is none.
        """
        x, up, down = cast_once(x), cast_once(part_here(self.up)), cast_once(part_here(self.down))
        gate = None if self.gate is None else cast_once(part_here(self.gate))
        weights, slots, ends = weights.to(x.dtype), assigned.slots, assigned.ends
        if self._is_grouped(up):
            product, gradient, ends = grouped_product, grouped_gradient, ends.to(torch.int32)
        else:
            product, gradient = looped_product, looped_gradient
        if self.adapter is None and not torch.compiler.is_compiling():
            kernels = ExpertKernels(product, gradient, self.activation, weights.shape[1])
            return grouped_experts(x, weights, gate, up, down, slots, ends, factors, kernels)
        # A compiler decides by itself what to keep for the gradients; and an adapter leaves out
        # those of the matrices.
        multiply = partial(self._multiply, product=product, ends=ends)
        rows = gather(x, slots, weights.shape[1])
        inner = self.activation(
            multiply("up" if gate is None else "gate", rows, up if gate is None else gate)
        )
        if gate is not None:
            inner = inner * multiply("up", rows, up)
        return _add_up(multiply("down", inner, down), weights, slots, factors)

    def _multiply(
        self, name: str, rows: Tensor, matrices: Tensor, *, product: Product, ends: Tensor
    ) -> Tensor:
        """Products of rows with the matrices of their experts, and what an adapter adds to them."""
        found = product(rows, matrices, ends)
        if self.adapter is None:
            return found

        def low_rank(rows: Tensor, matrices: Tensor) -> Tensor:
            if product is grouped_product and why_not_grouped(matrices) is None:
                return grouped_product(rows, matrices, ends)
            return looped_product(rows, matrices, ends)

        def spread_over(rows: Tensor, vectors: Tensor) -> Tensor:
            places = torch.arange(len(rows), device=rows.device)
            return vectors[torch.searchsorted(ends.to(places.dtype), places, right=True)]

        return self.adapter(name, rows, found, matrices, low_rank, spread_over)

    def _is_grouped(self, up: Tensor) -> bool:
        if self.implementation == "loop":
            return False
        reason = why_not_grouped(up)
        if reason is not None and self.implementation == "grouped":
            raise SetpointError(
                f"model.moe.implementation = grouped: there is no grouped matrix product here: "
                f"{reason}; auto takes it where it works, and loop works everywhere"
            )
        return reason is None


class UnpackedExperts(nn.ModuleDict):
    """A feed-forward network for each expert, by its number; without biases."""

    def __init__(self, config: TransformerConfig) -> None:
        assert config.moe is not None
        width = config.moe.width(config.ffn_dim)
        super().__init__(
            {
                str(expert): FeedForward(config, width, bias=False)
                for expert in range(config.moe.experts)
            }
        )

    def forward(
        self, x: Tensor, weights: Tensor, assigned: Assignments, factors: Tensor | None = None
    ) -> Tensor:
        """Add up what the chosen experts make of each token.

        Arguments:
            factors: (R,) what gradients through each row are multiplied by; None: nothing.
        """
        rows = gather(cast_once(x), assigned.slots, weights.shape[1])
        ends = assigned.ends
        sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
        # An expert without rows is called as well: its gradient is zero then, as that of a packed
        # one, and not missing, which optimizers would take for "leave it alone".
        parts = zip(self.values(), rows.split(sizes), strict=True)
        out = torch.cat([expert(part) for expert, part in parts])
        return _add_up(out, weights, assigned.slots, factors)


def _add_up(rows: Tensor, weights: Tensor, slots: Tensor, factors: Tensor | None) -> Tensor:
    """The weighted sums over the choices of each token."""
    if factors is not None:
        rows = scale_gradient(rows, factors)
    choices = spread(rows, slots, weights.numel()).unflatten(0, weights.shape)
    return (choices * weights.unsqueeze(-1).to(rows.dtype)).sum(dim=1)
