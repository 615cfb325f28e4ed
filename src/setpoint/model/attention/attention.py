"""Causal self-attention with grouped queries or latents, the state shared by its layers, RoPE."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.model.attention.backends import Backend, RowLayout, Scores
from setpoint.model.attention.choose_backend import choose_backend, use_flash
from setpoint.model.attention.config import (
    Kind,
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
)
from setpoint.model.attention.key_value_cache import KeyValueCache
from setpoint.model.attention.selection import (
    attention_scale,
    kind_of,
    kinds_of,
    query_size,
    reach,
)
from setpoint.model.block_modules import UnweightedNorm, build_norm, cast_once, linear_rules
from setpoint.model.initialize import Initializer, NormalInit
from setpoint.shapes.outcome import weight_in_use

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig
    from setpoint.shapes.batch import ContextGroups, Lengths


class Attention(nn.Module):
    """Grouped-query attention, causal, optionally in a sliding window or in chunks.

    Softmax(scale * Q K^T) V per head (Vaswani et al., 2017); query heads share key-value heads
    (Ainslie et al., 2023). Queries and keys may be normalized per head (Henry et al., 2020) before
    they are rotated by their positions.

    Arguments:
        layer: index in the whole model, from 0; determines the kind of attention.
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.kind: Kind = kind_of(config, layer)
        self.head_dim = config.head_dim
        self.kv_heads = config.kv_heads
        self.group = config.heads // config.kv_heads
        self.scale = attention_scale(config)
        self.soft_cap = config.attention_soft_cap
        self.dropout = config.attention_dropout
        self.hidden_std = config.hidden_std
        self.residual_std = config.residual_std(layer)
        query_dim, kv_dim = config.heads * config.head_dim, config.kv_heads * config.head_dim
        bias = config.qkv_bias
        if config.merge_qkv:
            self.query_key_value = nn.Linear(config.dim, query_dim + 2 * kv_dim, bias=bias)
        else:
            self.query_key_value = None
            self.query = nn.Linear(config.dim, query_dim, bias=bias)
            self.key = nn.Linear(config.dim, kv_dim, bias=bias)
            self.value = nn.Linear(config.dim, kv_dim, bias=bias)
        self.rotates = config.rotates(layer)
        norms = config.norms_queries(layer)
        self.norms_all_heads = norms and config.qk_norm_across_heads
        sizes = (query_dim, kv_dim) if self.norms_all_heads else (config.head_dim,) * 2
        build = build_norm if config.qk_norm_weights else UnweightedNorm
        self.query_norm = build(config, sizes[0]) if norms else None
        self.key_norm = build(config, sizes[1]) if norms else None
        self.output = nn.Linear(query_dim, config.dim, bias=config.attention_output_bias)
        self.sinks = nn.Parameter(torch.empty(config.heads)) if config.attention_sinks else None

    def initializers(self) -> dict[str, Initializer]:
        """Initial values of the projections and sinks; norms have their own."""
        rules = linear_rules(self, self.hidden_std, output=self.residual_std)
        return rules if self.sinks is None else {**rules, "sinks": NormalInit(self.hidden_std)}

    def tensor_plan(self) -> dict[str, str]:
        """Division by heads; see `setpoint.shapes.protocols.TensorDivisible`."""
        if self.norms_all_heads:
            return {"": "whole"}  # its norms need the heads of all ranks
        heads = f"{self.group * self.kv_heads}*{self.head_dim}"
        kv_heads = f"{self.kv_heads}*{self.head_dim} shared"
        plan = {"": "shared_input", "output": "row"}
        if self.sinks is not None:
            plan["sinks"] = "part"
        if self.query_key_value is not None:
            return {**plan, "query_key_value": f"column {heads} + {kv_heads} + {kv_heads}"}
        names = {"query": heads, "key": kv_heads, "value": kv_heads}
        return {**plan, **{name: f"column {groups}" for name, groups in names.items()}}

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Map (B, S, dim) to (B, S, dim)."""
        query, key, value = self._project(cast_once(x))
        if self.query_norm is not None and self.key_norm is not None:
            if self.norms_all_heads:
                query = self.query_norm(query.flatten(2)).view_as(query)
                key = self.key_norm(key.flatten(2)).view_as(key)
            else:
                query, key = self.query_norm(query), self.key_norm(key)
        if self.rotates:
            # Both at once, as the memory plan assumes.
            query, key = (
                context.apply_rotary(query, self.kind),
                context.apply_rotary(key, self.kind),
            )
        else:
            query = context.apply_temperature(query)
        key, value = context.update_cache(self.layer, self.kind, key, value)
        dropout = self.dropout if self.training else 0.0
        scores = Scores(self.scale, self.soft_cap, dropout, self.sinks)
        mixed = context.attend(self.kind, query, key, value, scores)
        return self.output(mixed.flatten(2))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, S, dim) to queries (B, S, H, head_dim), and keys and values (B, S, K, head_dim)."""
        # Head counts are read off the shapes: under tensor parallelism they are the local ones.
        if self.query_key_value is not None:
            merged = self.query_key_value(x)
            if merged.shape[-1] != self.query_key_value.out_features:
                # A rank's rows would be some heads' queries and other heads' keys and values.
                raise SetpointError(
                    "model.merge_qkv = true: one matrix of queries, keys and values cannot be "
                    "split among ranks by contiguous rows; use the split in tensor_plan()"
                )
            heads = merged.unflatten(-1, (-1, self.head_dim))
            # With more ranks than key-value heads, each has one of them.
            kv_heads = max(1, heads.shape[2] // (self.group + 2))
            queries = heads.shape[2] - 2 * kv_heads
            query, key, value = heads.split((queries, kv_heads, kv_heads), dim=2)
            return query, key, value
        query, key, value = self.query(x), self.key(x), self.value(x)
        shape = (-1, self.head_dim)
        return query.unflatten(-1, shape), key.unflatten(-1, shape), value.unflatten(-1, shape)


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, 2024).

    With the latent c = norm(W_down x), a head's keys are [W_key c, r] and its values W_value c; the
    rotated part r, computed from x, is shared by all heads. Queries may have a latent, too. The
    cache contains only c and r. For a single new token the up-projections are absorbed into the
    query and the result: q . W_key c = (W_key^T q) . c, and sum_j a_j W_value c_j = W_value sum_j
    a_j c_j.
    """

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        assert config.mla is not None
        mla = config.mla
        self.layer = layer
        self.kind: Kind = kind_of(config, layer)
        self.heads = config.heads
        self.rotates = config.rotates(layer)
        self.nope_head_dim = mla.nope_head_dim
        self.rope_head_dim = mla.rope_head_dim
        self.value_head_dim = mla.value_head_dim
        self.kv_rank = mla.kv_rank
        self.scale = attention_scale(config) or 1 / math.sqrt(query_size(config))
        self.soft_cap = config.attention_soft_cap
        self.dropout = config.attention_dropout
        self.hidden_std = config.hidden_std
        self.residual_std = config.residual_std(layer)
        queries = config.heads * query_size(config)
        if mla.query_rank is None:
            self.query = nn.Linear(config.dim, queries, bias=False)
        else:
            self.query_down = nn.Linear(config.dim, mla.query_rank, bias=False)
            self.query_down_norm = build_norm(config, mla.query_rank)
            self.query_up = nn.Linear(mla.query_rank, queries, bias=False)
        self.has_query_latent = mla.query_rank is not None
        self.key_value_down = nn.Linear(config.dim, mla.kv_rank + mla.rope_head_dim, bias=False)
        self.key_value_down_norm = build_norm(config, mla.kv_rank)
        up = config.heads * (mla.nope_head_dim + mla.value_head_dim)
        self.key_value_up = nn.Linear(mla.kv_rank, up, bias=False)
        bias = config.attention_output_bias
        self.output = nn.Linear(config.heads * mla.value_head_dim, config.dim, bias=bias)

    def initializers(self) -> dict[str, Initializer]:
        """Initial values of the projections; norms have their own."""
        return linear_rules(self, self.hidden_std, output=self.residual_std)

    def tensor_plan(self) -> dict[str, str]:
        """Division by heads, with latents on all ranks."""
        query = "query_up" if self.has_query_latent else "query"
        sizes = {
            query: self.nope_head_dim + self.rope_head_dim,
            "key_value_up": self.nope_head_dim + self.value_head_dim,
        }
        columns = {name: f"column {self.heads}*{size}" for name, size in sizes.items()}
        return {"": "shared_input", **columns, "output": "row"}

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Map (B, S, dim) to (B, S, dim)."""
        x = cast_once(x)
        if self.has_query_latent:
            query = self.query_up(self.query_down_norm(self.query_down(x)))
        else:
            query = self.query(x)
        # Head counts are read off the shapes: under tensor parallelism they are the local ones.
        query = query.unflatten(-1, (-1, self.nope_head_dim + self.rope_head_dim))
        query = query if self.rotates else context.apply_temperature(query)
        query_nope, query_rope = query.split((self.nope_head_dim, self.rope_head_dim), dim=-1)
        query_rope = context.apply_rotary(query_rope, self.kind) if self.rotates else query_rope
        latent, shared = self.key_value_down(x).split((self.kv_rank, self.rope_head_dim), dim=-1)
        latent = self.key_value_down_norm(latent)
        shared = shared.unsqueeze(2)
        shared = context.apply_rotary(shared, self.kind) if self.rotates else shared
        latent, shared = context.update_cache(self.layer, self.kind, latent, shared)
        if context.cache is not None and x.shape[1] == 1:
            mixed = self._attend_to_latents(query_nope, query_rope, latent, shared, context)
            return self.output(mixed.flatten(2))
        # Keys and values (B, L, H, ...) of each head.
        heads = self.key_value_up(latent).unflatten(
            -1, (-1, self.nope_head_dim + self.value_head_dim)
        )
        key, value = heads.split((self.nope_head_dim, self.value_head_dim), dim=-1)
        shared = shared.expand(-1, -1, key.shape[2], -1)
        query = torch.cat((query_nope, query_rope), dim=-1)
        mixed = self._attend(query, torch.cat((key, shared), dim=-1), value, context)
        return self.output(mixed.flatten(2))

    def _attend_to_latents(
        self,
        query_nope: Tensor,
        query_rope: Tensor,
        latent: Tensor,
        shared: Tensor,
        context: AttentionContext,
    ) -> Tensor:
        """Attend to the latents (B, L, 1, kv_rank) as a single key-value head for all heads."""
        up = weight_in_use(self.key_value_up).unflatten(
            0, (-1, self.nope_head_dim + self.value_head_dim)
        )
        to_key, to_value = up.split((self.nope_head_dim, self.value_head_dim), dim=1)
        query = torch.cat((torch.einsum("bshn,hnr->bshr", query_nope, to_key), query_rope), dim=-1)
        value = latent.unsqueeze(2)
        mixed = self._attend(query, torch.cat((value, shared), dim=-1), value, context)
        return torch.einsum("bshr,hvr->bshv", mixed, to_value)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext
    ) -> Tensor:
        scores = Scores(self.scale, self.soft_cap, self.dropout if self.training else 0.0)
        return context.attend(self.kind, query, key, value, scores)


# Not a NamedTuple: engines cast the tensors in those, and rotations must stay in fp32.
@dataclass(frozen=True, slots=True, eq=False)
class KindView:
    """State shared by layers of one kind in a forward pass.

    Arguments:
        mask: from the backend's `prepare_mask`.
        rotation: rotation of the new positions; None without RoPE.
        first: first visible slot of the cache.
    """

    backend: Backend
    mask: Any
    rotation: Rotation | None
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class AttentionContext:
    """State shared by all layers in a forward pass.

    Arguments:
        cache: keys and values of earlier tokens; None outside generation.
        temperature: (..., S, 1, 1) fp32 factors of queries without RoPE; None: 1.
    """

    positions: Tensor
    views: dict[Kind, KindView]
    cache: KeyValueCache | None = None
    temperature: Tensor | None = None

    def apply_rotary(self, x: Tensor, kind: Kind) -> Tensor:
        """Rotate queries or keys by their positions, if the model uses RoPE."""
        angles = self.views[kind].rotation
        return x if angles is None else rotate(x, angles)

    def apply_temperature(self, query: Tensor) -> Tensor:
        """Scale queries without RoPE by their positions, if the model does so."""
        return query if self.temperature is None else (query * self.temperature).to(query.dtype)

    def attend(
        self, kind: Kind, query: Tensor, key: Tensor, value: Tensor, scores: Scores
    ) -> Tensor:
        """Call the backend of a layer; see `Backend.attend`."""
        view = self.views[kind]
        # Norms give fp32 under a GPU's autocast, and flash kernels take one dtype of two bytes.
        query, key, value = map(cast_once, (query, key, value))
        return view.backend.attend(query, key, value, view.mask, scores)

    def update_cache(self, layer: int, kind: Kind, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Append new keys and values to the cache, if any; return all that the layer sees."""
        if self.cache is None:
            return tensors
        kept = tuple(map(cast_once, tensors))
        return self.cache.append(layer, kept, self.views[kind].first)


def attention_context(
    config: TransformerConfig,
    x: Tensor,
    positions: Tensor | None = None,
    documents: Tensor | None = None,
    cache: KeyValueCache | None = None,
    groups: ContextGroups | None = None,
    *,
    lengths: Lengths | None = None,
    dtype: torch.dtype = torch.float32,
    backends: dict[Any, Backend] | None = None,
) -> AttentionContext:
    """Prepare a forward pass: a backend, a mask and a rotation for each kind of layer.

    Arguments:
        x: (B, S, ...) tokens or hidden states, for their shape and device.
        positions: (S,), equal in all rows and without padding; or (B, S), negative for padding.
            None: 0 .. S - 1, or the positions after the cache.
        documents: (B, S) integers: tokens attend within their document. None: one document per row.
        cache: cache of earlier tokens, to which the new ones are appended.
        groups: the ranks that divide each sequence; x is then this rank's part, but positions and
            documents cover whole sequences.
        lengths: see `RowLayout`.
        dtype: dtype of queries, keys and values.
        backends: backends from earlier calls, to which this call adds its own; None: choose afresh.

    Raises:
        ValueError: wrong shapes, negative positions for all rows, or a cache for a part of a
            sequence.
        SetpointError: the backend does not run on this device.
    """
    batch, length = x.shape[:2]
    if groups is not None:
        length *= groups.parts.size
        if cache is not None:
            raise ValueError(
                "a cache needs whole sequences, but this model's are divided among ranks"
            )
    if positions is not None:
        _check_shape("positions", positions, (batch, length), (length,))
        if positions.dim() == 1:
            _refuse_padding(positions)
    if documents is not None:
        _check_shape("documents", documents, (batch, length))
    if cache is not None:
        layout = cache.extend((batch, length), x.device, positions, documents)
    else:
        layout = RowLayout(
            queries=length,
            keys=length,
            batch=batch,
            device=x.device,
            positions=None if positions is None else torch.atleast_2d(positions),
            padded=positions is not None and positions.dim() == 2,
            documents=documents,
            lengths=lengths,
        )
    if positions is None:
        start = layout.keys - length
        positions = torch.arange(start, start + length, device=x.device)
    if groups is not None:
        positions = groups.parts.take(positions, dim=-1)
    if backends is None or torch.compiler.is_compiling():  # whose graphs guard what they read
        backends = {}
    rotations: dict[tuple[float, bool], Rotation] = {}
    views: dict[Kind, KindView] = {}
    for kind in kinds_of(config):
        size = reach(config, kind)
        first = 0 if cache is None or size is None else cache.trim(layout, kind, size)
        window = size if kind == "sliding" else None
        shown = layout.chunked(size) if kind == "chunked" and size is not None else layout
        masked, cached = shown.is_masked(window), cache is not None
        ring = groups is not None and groups.ring is not None
        key = (x.device, dtype, masked, cached, ring)
        if key not in backends:
            backends[key] = choose_backend(
                config, x.device, dtype, masked=masked, cached=cached, ring=ring
            )
        elif x.is_cuda:  # another model may have activated other flash operators
            dropout = config.attention_dropout > 0
            use_flash(backends[key].name, x.device, query_size(config), dropout)
        backend = backends[key] if groups is None else over_ranks(backends[key], groups)
        mask = backend.prepare_mask(shown.without_first(first), window)
        views[kind] = KindView(backend, mask, _rotation(config, kind, positions, rotations), first)
    return AttentionContext(positions, views, cache, _temperature(config, positions))


def over_ranks(backend: Backend, groups: ContextGroups) -> Backend:
    """Wrap a backend in context parallelism; a ring computes blocks with its kernels."""
    # A single process does not use it.
    from setpoint.model.attention.over_ranks import Ring, Ulysses

    wrapped: Any = backend  # methods that are not compiled have lost their types
    if groups.ring is not None:
        wrapped = Ring(backend.name, groups.parts, groups.ring)
    return wrapped if groups.ulysses is None else Ulysses(wrapped, groups.ulysses)


def _rotation(
    config: TransformerConfig,
    kind: Kind,
    positions: Tensor,
    rotations: dict[tuple[float, bool], Rotation],
) -> Rotation | None:
    """Rotation in layers of one kind; kinds with the same RoPE share it."""
    if config.positions != "rotary":
        return None
    separate = config.rope_base_sliding is not None and kind == "sliding"
    base = config.rope_base_sliding if separate else config.rope_base
    assert base is not None
    if (base, separate) not in rotations:
        size = config.rope_dim or config.head_dim
        size = size if config.mla is None else config.mla.rope_head_dim
        rotations[base, separate] = rotation(
            positions, size, base, None if separate else config.rope_scaling
        )
    return rotations[base, separate]


def _temperature(config: TransformerConfig, positions: Tensor) -> Tensor | None:
    """Factors of queries in layers without RoPE; see `AttentionTemperature`."""
    if config.attention_temperature is None:
        return None
    interval, scale = config.attention_temperature.interval, config.attention_temperature.scale
    steps = (positions.clamp(min=0) + 1).div(interval, rounding_mode="floor")
    return (1 + scale * steps.to(torch.float32).log1p())[..., None, None]


def _check_shape(name: str, given: Tensor, *shapes: tuple[int, ...]) -> None:
    if tuple(given.shape) not in shapes:
        valid = " or ".join(map(str, shapes))
        raise ValueError(f"{name} have shape {tuple(given.shape)}; tokens need {valid}")


def _refuse_padding(positions: Tensor) -> None:
    message = "positions of all rows must not be negative; mark padding in (B, S) positions"
    if positions.is_cpu and not torch.compiler.is_compiling():
        if bool((positions < 0).any()):
            raise ValueError(message)
    else:
        # Without a device synchronization.
        torch._assert_async(  # pyright: ignore[reportPrivateImportUsage]  # there is no other
            (positions >= 0).all(), message
        )


# Rotary position embedding: positions enter attention as rotations of queries and keys.


class Rotation(NamedTuple):
    """Cosines and signed sines of the angles at some positions, ready to be applied.

    Arguments:
        cos: (..., S, 1, head_dim) fp32, each half of the last axis holds the same cosines.
        sin: (..., S, 1, head_dim) fp32, the sines, negated in the first half.
    """

    cos: Tensor
    sin: Tensor


def rotation(
    positions: Tensor, head_dim: int, base: float, scaling: RopeScaling | None = None
) -> Rotation:
    """Compute the rotation for explicit positions.

    The angle of position p in plane i is p * base^(-2i / head_dim) (RoPE, Su et al., 2021). Angles
    are computed in float64, because in float32 the product itself is off by 1e-3 radians at
    position 16384. The result is neither cached nor kept in a buffer, so it is correct for any
    slice of any sequence, on any device, after any change of the module's dtype, and after
    construction on the meta device.

    Arguments:
        positions: (S,) or (B, S) integers; they need neither start at zero nor be consecutive.
        base: the longest wavelength is 2 * pi * base positions (in the limit of many planes).
        scaling: the rule that stretches the wavelengths; None: no scaling.
    """
    radians, scale = frequencies(head_dim, base, scaling, positions.device)
    angles = positions.to(torch.float64).unsqueeze(-1) * radians
    cos, sin = angles.cos(), angles.sin()
    if scale != 1.0:
        cos, sin = cos * scale, sin * scale
    cos, sin = cos.float(), sin.float()
    return Rotation(
        cos=torch.cat((cos, cos), dim=-1).unsqueeze(-2),
        sin=torch.cat((-sin, sin), dim=-1).unsqueeze(-2),
    )


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Rotate queries or keys by the angles of their positions.

    Plane i is spanned by components i and i + head_dim / 2 (the split-half layout), so the rotation
    is two products and one exchange of halves over contiguous memory. If the rotation has fewer
    dimensions than x, the other dimensions are unchanged.

    Returns:
        (B, S, heads, head_dim) in the dtype of x; lower precisions are rotated in fp32.
    """
    size = by.cos.shape[-1]
    if size < x.shape[-1]:
        return torch.cat((rotate(x[..., :size], by), x[..., size:]), dim=-1)
    first, second = x.chunk(2, dim=-1)
    return (x * by.cos + torch.cat((second, first), dim=-1) * by.sin).to(x.dtype)


class Frequencies(NamedTuple):
    """The angles by which a head's planes turn from one position to the next.

    Arguments:
        radians: (head_dim / 2,) float64, per position.
        scale: factor on queries and keys; 1 except for YaRN.
    """

    radians: Tensor
    scale: float = 1.0


def frequencies(
    head_dim: int,
    base: float,
    scaling: RopeScaling | None = None,
    device: torch.device | None = None,
) -> Frequencies:
    """Compute each plane's angle per position: base^(-2i / head_dim) (RoPE, Su et al., 2021).

    Arguments:
        base: the longest wavelength is 2 * pi * base positions (in the limit of many planes).
        scaling: the rule that slows planes down; None: no scaling.
    """
    plane = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device)
    radians = base ** (-plane / head_dim)
    match scaling:
        case LinearScaling():
            # Equivalent to dividing positions (Position Interpolation, Chen et al., 2023).
            return Frequencies(radians / scaling.factor)
        case Llama3Scaling():
            return Frequencies(llama3_scaling(radians, scaling))
        case YarnScaling():
            # Larger queries and keys make attention over longer sequences sharper.
            scale = scaling.attention_factor
            scale = 0.1 * math.log(scaling.factor) + 1.0 if scale is None else scale
            return Frequencies(yarn_scaling(radians, scaling, head_dim, base), scale)
        case _:
            return Frequencies(radians)


def llama3_scaling(radians: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Slow the planes that rarely turn over the original length (Llama 3.1, Meta, 2024).

    A plane turns t = original_length / wavelength times. With k = (t - low) / (high - low), clamped
    to 0 .. 1, it keeps the fraction k of its frequency, and the rest is divided by the factor:
    f' = k f + (1 - k) f / factor, where low and high are the two frequency factors. If these are
    equal, as in Llama 4, k is 0 below them, and 1 at or above them.
    """
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    turns = scaling.original_length * radians / (2 * math.pi)
    if low == high:
        kept = (turns >= low).to(turns.dtype)
    else:
        kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * radians + (1 - kept) * radians / scaling.factor


def yarn_scaling(radians: Tensor, scaling: YarnScaling, head_dim: int, base: float) -> Tensor:
    """Slow the planes that rarely turn over the original length; the ramp is linear in the plane.

    Plane i turns n times over the original length L at i(n) = head_dim * ln(L / (2 pi n)) / (2
    ln(base)). Planes up to i(beta_fast) keep their frequency; from i(beta_slow) on, it is divided
    by the factor; in between, the two are blended (YaRN, Peng et al., 2023, section 3.2).
    """

    def plane_of(turns: float) -> float:
        length = scaling.original_length / (2 * math.pi * turns)
        return head_dim * math.log(length) / (2 * math.log(base))

    first, last = plane_of(scaling.beta_fast), plane_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    # The published code cuts the ramp at head_dim - 1, though there are half as many planes.
    first, last = max(first, 0), max(min(last, head_dim - 1), 0)
    if first == last:
        last += 0.001
    plane = torch.arange(radians.shape[0], dtype=radians.dtype, device=radians.device)
    stretched = ((plane - first) / (last - first)).clamp(0, 1)
    return (1 - stretched) * radians + stretched * radians / scaling.factor
