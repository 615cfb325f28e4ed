"""Adapters: modules that compute an update, their insertion into a model, and merging."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from setpoint.adapter.config import AdapterConfig
from setpoint.adapter.quantized_weight import class_with, make_dense, quantize_base
from setpoint.adapter.targets import (
    CHILD,
    AdapterTarget,
    Described,
    adapter_problems,
    describe,
    quantized_sites,
    sites_of,
)
from setpoint.config import SetpointError
from setpoint.shapes.parameter import Kind, Parameter
from setpoint.shapes.patterns import matches
from setpoint.shapes.placed import local_part
from setpoint.shapes.stored import CHILD as QUANTIZED

if TYPE_CHECKING:
    from setpoint.shapes.peers import Peers
    from setpoint.shapes.protocols import DividedParameters, Range

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

    def follow(self, word: str, rows: Sequence[Range], peers: Peers) -> DividedParameters:
        """See `setpoint.shapes.protocols.FollowsDivision`."""
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

    def follow(self, word: str, rows: Sequence[Range], peers: Peers) -> DividedParameters:
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

    def follow(self, word: str, rows: Sequence[Range], peers: Peers) -> DividedParameters:
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

    def follow(self, word: str, rows: Sequence[Range], peers: Peers) -> DividedParameters:
        """See `setpoint.shapes.protocols.FollowsDivision`; supports `row` and `column`."""
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
    return {name: module for name, module in model.named_modules() if isinstance(module, LowRank)}


class DenseExperts:
    """Mixin of transformers' experts with adapters or quantized tensors.

    Their forward pass multiplies by the tensors of all experts, so it receives dense tensors that
    include the updates. Quantized tensors are dequantized in the forward pass, and again in the
    backward pass, one layer at a time.
    """

    def forward(self, *args: Any, **named: Any) -> Any:
        """Compute with dense weights."""
        if not (torch.is_grad_enabled() and _children(self, QUANTIZED)):
            return self._with_dense(*args, **named)
        return checkpoint(self._with_dense, *args, use_reentrant=False, **named)

    def _with_dense(self, *args: Any, **named: Any) -> Any:
        module: Any = self
        adapters, stored = _children(self, CHILD), _children(self, QUANTIZED)
        dtypes = (param.dtype for param in module.parameters() if param.requires_grad)
        dtype = next(dtypes, args[0].dtype)
        # Attributes of a module take precedence over its parameters.
        for name in dict.fromkeys((*stored, *adapters)):
            if name in adapters:
                weight = (
                    stored[name].dense() if name in stored else local_part(module._parameters[name])
                )
                merged = merged_weight(weight, adapters[name])
                module.__dict__[name] = merged.to(dtype) if name in stored else merged
            else:
                module.__dict__[name] = stored[name].dense(dtype)
        try:
            above: Any = super()
            return above.forward(*args, **named)
        finally:
            for name in dict.fromkeys((*stored, *adapters)):
                del module.__dict__[name]


def _children(module: Any, name: str) -> dict[str, Any]:
    return dict((module._modules.get(name) or nn.ModuleDict()).items())


def merged_weight(weight: Tensor, adapter: LowRank) -> Tensor:
    """W + scale * B A; with a magnitude, each row is scaled to that norm.

    Computed in at least fp32. Gradients reach the adapter through the result, but not through the
    row norms (DoRA, 4.3).

    Arguments:
        weight: the dense weight of the module, whole or the local part, like the adapter's
            parameters.

    Returns:
        a weight in the dtype of the module's weight.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    merged = weight.to(wide) + adapter.delta()
    if adapter.magnitude is not None:
        # Ranks hold parts of experts, which have no readers of their own.
        is_packed = isinstance(adapter, ExpertAdapter)
        magnitude = local_part(adapter.magnitude) if is_packed else adapter.magnitude
        factor = magnitude / adapter.lengths(weight)
        merged = merged * factor.unsqueeze(adapter.row_dim)
    return merged.to(weight.dtype)


@torch.no_grad()
def merge_all(model: nn.Module) -> None:
    """Merge all adapters of a model into its weights, and remove them.

    Arguments:
        model: a whole model, on one rank; afterwards its modules are plain and its quantized
            weights dense.
    """
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    for module in list(model.modules()):
        for name, adapter in list(module.named_children()):
            if name != "adapter":
                continue
            if isinstance(adapter, LinearAdapter | EmbeddingAdapter):
                quantized = QUANTIZED in module._modules
                weight: Any = module.weight if quantized else _dense(module, "weight")
                merged = merged_weight(weight, adapter)
                del module._modules[name]
                # The class from before the adaptation, which is the base of the present one.
                module.__class__ = type(module).__bases__[1]
                if quantized:
                    make_dense(module, merged.to(dtype))
                else:
                    weight.copy_(merged)
            elif adapter and all(isinstance(child, ExpertAdapter) for child in adapter.children()):
                make_dense(module, dtype=dtype)
                for weight_name, child in adapter.named_children():
                    weight = _dense(module, weight_name)
                    assert isinstance(child, ExpertAdapter)
                    weight.copy_(merged_weight(weight, child))
                if isinstance(module, DenseExperts):
                    del module._modules[name]
                else:
                    module.adapter = None  # type: ignore[assignment]
    for module in list(model.modules()):
        make_dense(module, dtype=dtype)
        if isinstance(module, DenseExperts):
            module._modules.pop(QUANTIZED, None)
            module.__class__ = type(module).__bases__[1]


def _dense(module: nn.Module, name: str) -> Tensor:
    # Not by name, since some modules return their computed weight under it.
    weight: Any = module._parameters[name]
    if hasattr(weight, "placements"):
        raise SetpointError(
            "adapters of sharded weights can be merged only after the weights were gathered"
        )
    return weight


def adapt(
    config: AdapterConfig,
    model: nn.Module,
    parameters: Sequence[Parameter],
    fused: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> Described:
    """Add an adapter to a model, possibly with quantized weights, and freeze other parameters.

    The adapter's parameters are inside the modules that they change, for example
    `layers.0.attention.query.adapter.a`. They are uninitialized: see `LowRank.spreads`, and
    `start_magnitudes` for magnitudes. Call this before the model is divided among ranks, so that A
    and B are divided like their weights.

    Arguments:
        model: the base, possibly on the meta device.
        parameters: parameters that the model would train.
        fused: output sizes of the projections fused in a module, by its name.
        seed: seed for the noise of quantized weights.

    Raises:
        SetpointError: the section does not suit the model, or the model already has an adapter.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    for problem in adapter_problems(config, parameters, fused, list(modules)):
        valid = f"\nValid: {', '.join(problem.valid)}" if problem.valid else ""
        raise SetpointError(
            f"adapter.{problem.path} {problem.message}{valid} {problem.hint}".strip()
        )
    described = describe(config, parameters, fused)
    quantized = quantized_sites(config, sites_of(parameters))
    if config.quantize is not None:
        quantize_base(config.quantize, model, quantized, seed)
    for site in (*quantized, *(target.site for target in described.targets)):
        if site.kind == "tensor" and not isinstance(modules[site.holder], DenseExperts):
            holder = modules[site.holder]
            holder.__class__ = class_with(type(holder), DenseExperts)
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for weight in module.parameters(recurse=False):
            owners.setdefault(id(weight), []).append(name)
    for target in described.targets:
        holder = modules[target.site.holder]
        _require_form(target, holder)
        parameter = holder._parameters.get(target.site.weight.rpartition(".")[2])
        shared = owners.get(id(parameter), ())
        if len(shared) > 1:
            raise SetpointError(
                f"adapter.targets: {' and '.join(shared)} share a weight, so merging an adapter "
                f"of one would change the other\nValid: exclude it with adapter.exclude, or do "
                f"not tie the weights"
            )
        _adapt_one(config, target, holder)
    trained = adapter_parameters(model).keys()
    for name, parameter in model.named_parameters():
        if name not in trained and not matches(config.train, name):
            parameter.requires_grad_(False)
    return described


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters of a model's adapters, by name."""
    return {
        f"{path}.{name}": parameter
        for path, adapter in adapters_of(model).items()
        for name, parameter in adapter.named_parameters(recurse=False)
    }


def _require_form(target: AdapterTarget, holder: nn.Module) -> None:
    fits = {
        "linear": isinstance(holder, nn.Linear) or target.site.inputs_first,
        "embedding": isinstance(holder, nn.Embedding),
        "experts": hasattr(holder, CHILD) or target.site.kind == "tensor",
    }
    if CHILD in holder._modules and target.site.form != "experts":
        raise SetpointError(f"adapter: {target.site.path} already has an adapter")
    if not fits[target.site.form]:
        raise SetpointError(
            f"adapter.targets: {target.site.path} is a {type(holder).__name__}, which is not a "
            f"linear layer, embedding or packed experts of Setpoint\nValid: exclude it with "
            f"adapter.exclude"
        )


def _adapt_one(config: AdapterConfig, target: AdapterTarget, holder: nn.Module) -> None:
    weight_name = target.site.path.rpartition(".")[2]
    given = (target, config.dropout, config.b_std)
    if target.site.form == "experts":
        adapters: Any = getattr(holder, CHILD, None)
        if adapters is None:
            adapters = ExpertAdapters()
            setattr(holder, CHILD, adapters)
        like: Any = holder._parameters[weight_name]
        if like is None:  # if it is quantized
            part: Any = next(holder.get_submodule(f"{QUANTIZED}.{weight_name}").parameters())
            like = torch.empty(0, device=part.device)
        adapters[weight_name] = ExpertAdapter(*given, like)
        return
    weight: Any = holder.weight
    is_linear = target.site.form == "linear"
    holder.add_module(CHILD, (LinearAdapter if is_linear else EmbeddingAdapter)(*given, weight))
    holder.__class__ = class_with(type(holder), _AdaptedLinear if is_linear else _AdaptedEmbedding)


class _AdaptedModule:
    """Mixin of adapted modules."""

    weight: Tensor
    adapter: Any
    forward: Any

    def adapted_weight(self) -> Tensor:
        """See `setpoint.shapes.protocols.Adapted`."""
        return merged_weight(self.weight, self.adapter)


class _AdaptedLinear(_AdaptedModule):
    bias: Tensor | None

    def product_weights(self) -> tuple[str, ...]:
        """See `setpoint.shapes.protocols.HasProducts`."""
        return ("weight", "bias") if self.adapter.magnitude is None else ()

    def forward(self, x: Tensor, *within: Any) -> Any:
        if within:  # modules that compute with `adapted_weight`
            return super().forward(x, *within)
        # A quantized weight is dequantized on reading.
        weight = None if self.adapter.magnitude is None else self.weight
        return self.adapter(x, super().forward(x), weight, self.bias)


class _AdaptedEmbedding(_AdaptedModule):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.adapter(tokens, super().forward(tokens), self.weight)
