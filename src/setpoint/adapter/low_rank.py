"""Modules that compute an adapter's update, for linear layers, embeddings and packed experts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.shapes.parameter import Kind
from setpoint.shapes.placed import local_part

if TYPE_CHECKING:
    from setpoint.adapter.targets import AdapterTarget
    from setpoint.shapes.peers import Peers

Multiply = Callable[[Tensor, Tensor], Tensor]
"""Product of rows, sorted by expert, with each expert's matrix: (R, in), (E, in, out)."""


class LowRank(nn.Module):
    """Base of adapters: A, B, a scale, and optionally a magnitude per row.

    Arguments:
        dropout: dropout of the input of A, in training.
        like: tensor with the dtype and device of the parameters.
    """

    a: nn.Parameter
    b: nn.Parameter
    magnitude: nn.Parameter | None

    def __init__(self, target: AdapterTarget, dropout: float, b_std: float, like: Tensor) -> None:
        super().__init__()
        self.scale = target.scale
        self.rank = target.rank
        self.dropout = dropout
        self.b_std = b_std
        self.inputs = target.site.inputs
        self.register_parameter("a", None)
        self.register_parameter("b", None)
        self.register_parameter("magnitude", None)
        for parameter in target.parameters():
            empty = torch.empty(parameter.shape, dtype=like.dtype, device=like.device)
            setattr(self, parameter.name.rpartition(".")[2], nn.Parameter(empty))
        self.sum_squares: Callable[[Tensor], Tensor] | None = None
        """Sums the squared length of a row over ranks; None: each rank has whole rows."""

    def spreads(self, after_merge: bool = False) -> dict[str, tuple[str, float]]:
        """Initial distributions of A and B: `uniform` with a bound, or `normal` with a deviation.

        A is Kaiming-uniform with a = sqrt(5), which is uniform up to 1 / sqrt(inputs), as in the
        code of LoRA's authors and in PEFT.

        Arguments:
            after_merge: whether to reinitialize after a merge, with a zero update.
        """
        b_std = 0.0 if after_merge else self.b_std
        return {"a": ("uniform", self.inputs**-0.5), "b": ("normal", b_std)}

    def parameter_kinds(self) -> dict[str, Kind]:
        """See `setpoint.shapes.protocols.KnowsKinds`."""
        return {"a": "matrix", "b": "matrix", "magnitude": "vector"}

    def follow(
        self, word: str, rows: Sequence[tuple[int, int]], peers: Peers
    ) -> tuple[dict[str, int], tuple[str, ...]]:
        """See `setpoint.shapes.protocols.FollowsDivision`."""
        del word, rows, peers
        return {}, ()

    def delta(self) -> Tensor:
        """The update, without the magnitude, in the layout of the weight."""
        return self.delta_of(self.a, self.b)

    @abstractmethod
    def delta_of(self, a: Tensor, b: Tensor) -> Tensor:
        """Update of one pair of A and B; see `delta`."""

    def extra_repr(self) -> str:
        """Text of `print`."""
        return f"rank={self.rank}, scale={self.scale:g}, dropout={self.dropout:g}"

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.dropout and self.training else x

    @property
    def row_dim(self) -> int:
        """Dimension of the weight along which magnitudes are norms."""
        return 1

    def lengths(self, weight: Tensor) -> Tensor:
        """Row norms of W + scale * B A, as constants (DoRA, section 4.3)."""
        with torch.no_grad():
            merged = weight.to(torch.promote_types(weight.dtype, torch.float32)) + self.delta()
            if self.sum_squares is None:
                return torch.linalg.vector_norm(merged, dim=self.row_dim)
            return self.sum_squares(merged.square().sum(self.row_dim)).sqrt()


class LinearAdapter(LowRank):
    """y + scale * B A x; with a magnitude m, m / |W + scale * B A| times that, row by row.

    Arguments:
        target: the adapted matrix; if it has pieces, each has its own rows of A, and the Bs are
            concatenated.
    """

    def __init__(self, target: AdapterTarget, dropout: float, b_std: float, like: Tensor) -> None:
        super().__init__(target, dropout, b_std, like)
        self.pieces = self.whole_pieces = target.pieces
        self.inputs_first = target.site.inputs_first

    def follow(
        self, word: str, rows: Sequence[tuple[int, int]], peers: Peers
    ) -> tuple[dict[str, int], tuple[str, ...]]:
        has = [name for name in ("b", "magnitude") if getattr(self, name) is not None]
        if word == "row":
            self.sum_squares = peers.reduce
            return {"a": 1}, ()
        if word in ("column", "column_gathered", "vocabulary_columns"):
            if rows:
                if self.pieces:
                    self.pieces = tuple(count for _, count in rows)
                return {}, tuple(has)
            return dict.fromkeys(has, 0), ()
        return {}, ()

    @property
    def row_dim(self) -> int:
        return 0 if self.inputs_first else 1

    def delta_of(self, a: Tensor, b: Tensor) -> Tensor:
        """See `LowRank.delta`: (outputs, inputs), or transposed like the weight."""
        if not self.pieces:
            product = b @ a
        else:
            sizes = self.pieces if b.shape[0] == sum(self.pieces) else self.whole_pieces
            parts = zip(a.split(self.rank), b.split(sizes), strict=True)
            product = torch.cat([part_b @ part_a for part_a, part_b in parts])
        return (product.T if self.inputs_first else product) * self.scale

    def forward(
        self, x: Tensor, output: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """Add the update to the layer's output.

        Arguments:
            output: W x + bias.
            weight: W; None without a magnitude.
        """
        inner = F.linear(self._dropped(x), self.a)
        if not self.pieces:
            update = F.linear(inner, self.b)
        else:
            parts = zip(inner.split(self.rank, -1), self.b.split(self.pieces), strict=True)
            update = torch.cat([F.linear(part, b) for part, b in parts], dim=-1)
        if self.magnitude is None or weight is None:
            return output + update * self.scale
        factor = (self.magnitude / self.lengths(weight)).to(output.dtype)
        if bias is None:
            return factor * (output + update * self.scale)
        bias = bias.to(output.dtype)
        return factor * (output - bias + update * self.scale) + bias


class EmbeddingAdapter(LowRank):
    """The vector of a token plus scale * B A[token]; A is (tokens, rank).

    Magnitudes are norms of the embedding's columns, as in PEFT.
    """

    def spreads(self, after_merge: bool = False) -> dict[str, tuple[str, float]]:
        """Initial distributions: A is zero and B normal, as in the code of LoRA's authors."""
        return {"a": ("normal", 0.0 if after_merge else self.b_std), "b": ("normal", 1.0)}

    def follow(
        self, word: str, rows: Sequence[tuple[int, int]], peers: Peers
    ) -> tuple[dict[str, int], tuple[str, ...]]:
        del rows
        if word != "vocabulary_rows":
            return {}, ()
        self.sum_squares = peers.reduce
        return {"a": 0}, ()

    @property
    def row_dim(self) -> int:
        """See `LowRank.row_dim`; PEFT treats the columns of an embedding as rows."""
        return 0

    def delta_of(self, a: Tensor, b: Tensor) -> Tensor:
        """See `LowRank.delta`: (tokens, dim)."""
        return (a @ b.T) * self.scale

    def forward(self, tokens: Tensor, output: Tensor, weight: Tensor) -> Tensor:
        """Add the update to the token vectors."""
        update = F.linear(F.embedding(tokens, self.a), self.b).to(output.dtype)
        if self.magnitude is None:
            return output + update * self.scale
        factor = (self.magnitude / self.lengths(weight)).to(output.dtype)
        return factor * (output + update * self.scale)


class ExpertAdapter(LowRank):
    """The update of one packed matrix (E, in, out); A is (E, in, rank), and B (E, rank, out).

    Matrices of transformers' experts may be (E, out, in).
    """

    def __init__(self, target: AdapterTarget, dropout: float, b_std: float, like: Tensor) -> None:
        super().__init__(target, dropout, b_std, like)
        self.outputs_first = target.site.outputs_first

    @property
    def row_dim(self) -> int:
        return 2 if self.outputs_first else 1

    def follow(
        self, word: str, rows: Sequence[tuple[int, int]], peers: Peers
    ) -> tuple[dict[str, int], tuple[str, ...]]:
        """See `setpoint.shapes.protocols.FollowsDivision`; supports `row` and `column`."""
        del rows
        if word == "row":
            self.sum_squares = peers.reduce
            return {"a": 1}, ()
        if word == "column":
            magnitude = {} if self.magnitude is None else {"magnitude": 1}
            return {"b": 2, **magnitude}, ()
        return {}, ()

    def delta(self) -> Tensor:
        """See `LowRank.delta`, of the local experts."""
        return self.delta_of(local_part(self.a), local_part(self.b))

    def delta_of(self, a: Tensor, b: Tensor) -> Tensor:
        product = torch.bmm(a, b) * self.scale
        return product.mT if self.outputs_first else product

    def forward(
        self,
        rows: Tensor,
        output: Tensor,
        weight: Callable[[], Tensor],
        multiply: Multiply,
        spread: Multiply,
    ) -> Tensor:
        """Add the update to products of rows with their experts' matrices.

        Arguments:
            rows: (R, in), sorted by expert.
            output: (R, out).
            weight: returns the (E, in, out) weight, for a magnitude.
            multiply: computes such products.
            spread: repeats a vector per expert for each of its rows.
        """
        a, b = local_part(self.a).to(rows.dtype), local_part(self.b).to(rows.dtype)
        update = multiply(multiply(self._dropped(rows), a), b) * self.scale
        if self.magnitude is None:
            return output + update
        factor = (local_part(self.magnitude) / self.lengths(weight())).to(output.dtype)
        return spread(output, factor) * (output + update)


class ExpertAdapters(nn.ModuleDict):
    """Adapters of packed experts, by projection."""

    def forward(self, name: str, rows: Tensor, output: Tensor, weight: Callable[[], Tensor],
                multiply: Multiply, spread: Multiply) -> Tensor:  # fmt: skip
        """Add the update of one projection, if any; see `ExpertAdapter.forward`."""
        if name not in self:
            return output
        return self[name](rows, output, weight, multiply, spread)


def adapters_of(model: nn.Module) -> Mapping[str, LowRank]:
    """Adapters of a model by name, in model order."""
    modules: dict[str, Any] = dict(model.named_modules())
    return {name: module for name, module in modules.items() if isinstance(module, LowRank)}
