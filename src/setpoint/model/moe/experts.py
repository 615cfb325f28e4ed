"""Experts: feed-forward networks, each for the rows that were sent to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
from setpoint.model.moe.rows import gather, scale_gradient, spread, sum_choices
from setpoint.model.scale import hidden_std, residual_std
from setpoint.shapes.placed import part_here
from setpoint.shapes.protocols import GroupedProducts

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


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
        self.projections = ("gate", "up", "down") if config.is_gated else ("up", "down")
        self.gate = nn.Parameter(torch.empty(count, dim, inner)) if config.is_gated else None
        self.up = nn.Parameter(torch.empty(count, dim, inner))
        self.down = nn.Parameter(torch.empty(count, inner, dim))
        self.adapter: nn.Module | None = None
        """Changes the products with some projections; see `setpoint.adapter`."""
        self.quantized: nn.ModuleDict | None = None
        """Projections that are no tensors; see `setpoint.shapes.stored.StoredExperts`."""
        self.grouped: GroupedProducts | None = None
        """Products in place of `implementation`; see `setpoint.shapes.protocols`."""

    def initializers(self) -> dict[str, Initializer]:
        """Return how each projection starts: each expert as if it were a module by itself."""
        return {
            name: PerExpert(Normal(self.down_std if name == "down" else self.std))
            for name in self.projections
        }

    def product_weights(self) -> list[str]:
        """See `setpoint.shapes.placed.HasProducts`."""
        adapters: Any = self.adapter or {}
        lengths = [n for n, adapter in adapters.items() if adapter.magnitude is not None]
        return [name for name in self.projections if name not in lengths]

    def size_here(self) -> tuple[int, int]:
        """See `setpoint.shapes.protocols.HasGroupedProducts`."""
        _, width, dim = part_here(self.down).shape
        return width, dim

    def widths(self) -> dict[str, int]:
        """Return the dimension of the inner width of each projection."""
        return {name: 1 if name == "down" else 2 for name in self.projections}

    def forward(
        self, x: Tensor, weights: Tensor, assigned: Assignments, factors: Tensor | None = None
    ) -> Tensor:
        """Add up what the chosen experts make of each token.

        Arguments:
            factors: (R,) what gradients through each row are multiplied by; None: nothing.

        Raises:
            SetpointError: the grouped matrix product is demanded where there is none.
        """
        x = cast_once(x)
        stored: dict[str, Any] = {} if self.quantized is None else dict(self.quantized.items())
        dense = {name: self._dense(name) for name in self.projections if name not in stored}
        weights, slots, ends = weights.to(x.dtype), assigned.slots, assigned.ends
        up = dense["up"] if "up" in dense else x.new_empty(1).expand(stored["up"].computed)
        if self.grouped is not None:
            (product, gradient), ends = self.grouped, ends.to(torch.int32)
        elif self._is_grouped(up):
            product, gradient, ends = grouped_product, grouped_gradient, ends.to(torch.int32)
        else:
            product, gradient = looped_product, looped_gradient
        if self.adapter is None and not stored and not torch.compiler.is_compiling():
            gate, down = dense.get("gate"), dense["down"]
            kernels = ExpertKernels(product, gradient, self.activation, weights.shape[1])
            return grouped_experts(x, weights, gate, up, down, slots, ends, factors, kernels)

        # A compiler decides by itself what to keep for the gradients; and beneath an adapter there
        # are none of the matrices.
        def multiply(name: str, rows: Tensor) -> Tensor:
            if name in stored:
                found = stored[name].multiply(rows, product, ends)
                return self._adapted(name, rows, found, stored[name].dense, product, ends)
            found = product(rows, dense[name], ends)
            return self._adapted(name, rows, found, lambda: dense[name], product, ends)

        rows = gather(x, slots, weights.shape[1])
        inner = self.activation(multiply(self.projections[0], rows))
        if "gate" in self.projections:
            inner = inner * multiply("up", rows)
        return _add_up(multiply("down", inner), weights, slots, factors)

    def _dense(self, name: str) -> Tensor:
        return cast_once(part_here(getattr(self, name)))

    def _adapted(
        self,
        name: str,
        rows: Tensor,
        found: Tensor,
        matrices: Callable[[], Tensor],
        product: Product,
        ends: Tensor,
    ) -> Tensor:
        """Products of rows with the matrices of their experts, and what an adapter adds to them."""
        if self.adapter is None:
            return found

        def low_rank(rows: Tensor, matrices: Tensor) -> Tensor:
            if product is not looped_product and why_not_grouped(matrices) is None:
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
    return sum_choices(choices * weights.unsqueeze(-1).to(rows.dtype))
