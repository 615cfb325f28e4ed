"""Setpoint's attention for transformers models: function, masks, packed rows and cache.

`register` adds the function and the mask to transformers under the name "setpoint". A model's
decoder requests a mask of each kind once per forward pass, and passes it to its layers. Here the
mask is an `AttentionMask`, which knows the documents of a batch, the backend, and the ranks that
divide its sequences. `attending` provides the documents to forward passes within it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.model.attention.attention import over_ranks
from setpoint.model.attention.backends import Backend, Eager, RowLayout, Scores, SdpaMask, visible
from setpoint.model.attention.choose_backend import first_available
from setpoint.model.attention.selection import Demands, candidates, unsupported
from setpoint.model.block_modules import cast_once

if TYPE_CHECKING:
    from setpoint.shapes.batch import ContextGroups

NAME: Final = "setpoint"
"""Name of the attention in transformers."""

ATTENDING = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
"""Layer types whose only state is keys and values."""

SCORES = 4.0
"""Standard deviation of scores in trial runs of attention."""
AGREES = 1e-5
"""Share of the largest value that rounding may change in attention."""

DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
"""Keys of transformers for attention dropout."""


@dataclass(slots=True, eq=False)
class AttentionInputs:
    """Positions and documents of the tokens of a forward pass.

    Arguments:
        layout: layout of whole sequences, even if ranks divide them; None: as determined by
            transformers itself, for example with a cache.
        demands: demands of the layers; individual layers may differ.
        masks: masks requested by the model, by (window, chunk).
        agreed: in a trial run, one entry per attention call: whether the result equals that of
            the family's eager function. Scores are large there, so that soft caps and sinks show.
            None: not a trial run.
    """

    layout: RowLayout | None
    demands: Demands
    groups: ContextGroups | None = None
    masks: dict[tuple[int | None, int | None], AttentionMask] = field(default_factory=dict)
    agreed: list[bool] | None = None


_running: list[AttentionInputs] = []
"""Inputs of the forward passes in progress, the innermost last."""


@contextmanager
def attending(inputs: AttentionInputs) -> Iterator[None]:
    """Provide these inputs to attention in forward passes within the block."""
    _running.append(inputs)
    try:
        yield
    finally:
        _running.pop()


class PreparedBackend(NamedTuple):
    """A backend with its prepared mask."""

    backend: Backend
    mask: Any


@dataclass(slots=True, eq=False)
class AttentionMask:
    """Mask shared by all layers of one kind.

    Arguments:
        layout: layout of whole sequences; chunks of a sequence are separate documents.
        dense: (B, 1, S, L) bool, True where a query attends to a key; None if window and layout
            describe the mask.
        cached: whether the keys include those of earlier calls.
        prepared: the backend for the demands of the model.
    """

    layout: RowLayout
    window: int | None
    groups: ContextGroups | None
    dense: Tensor | None
    cached: bool
    prepared: PreparedBackend = field(init=False)

    def prepare(self, demands: Demands, dtype: torch.dtype) -> PreparedBackend:
        """Choose a backend and prepare the mask for it.

        Raises:
            SetpointError: no backend meets the demands.
        """
        device, groups = self.layout.device, self.groups
        if self.dense is not None:
            names = candidates(demands)
            backend = first_available(names, device, demands)
            is_eager = isinstance(backend, Eager)
            return PreparedBackend(backend, self.dense if is_eager else SdpaMask(False, self.dense))
        ring = groups is not None and groups.ring is not None
        if ring and demands.sinks:
            raise SetpointError(
                "parallel.ring merges blocks of attention and does not support attention "
                "sinks\nValid: 1, or divide sequences by parallel.ulysses"
            )
        # With a cache, as on a CPU: masks have few rows, and lengths change with each call.
        kind = "cpu" if self.cached else device.type
        compute = "bf16" if dtype.itemsize == 2 else "fp32"
        masked = self.layout.is_masked(self.window)
        names = candidates(demands, "auto", kind, compute, masked=masked, ring=ring)
        if not names:
            raise SetpointError(
                f"model.attention_backend = {NAME}: no backend computes attention with {demands}\n"
                f"Valid: auto, eager"
            )
        backend = first_available(names, device, demands)
        if groups is not None:
            backend = over_ranks(backend, groups)
        return PreparedBackend(backend, backend.prepare_mask(self.layout, self.window))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """Compute the attention of a layer; see `Backend.attend`."""
        query, key, value = map(cast_once, (query, key, value))
        demands = Demands(
            query.shape[-1],
            value.shape[-1],
            scores.soft_cap is not None,
            scores.dropout > 0,
            scores.sinks is not None,
        )
        prepared = self.prepared
        if any(unsupported(demands, prepared.backend.name)):
            prepared = self.prepare(demands, query.dtype)
        return prepared.backend.attend(query, key, value, prepared.mask, scores)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Compute attention, with transformers' calling convention.

    The mask includes windows, as in transformers' own functions with masks.

    Arguments:
        query: (B, H, S, D).
        key, value: (B, K, L, D).
        s_aux: (H,) attention sinks.

    Returns:
        (B, S, H, D).

    Raises:
        SetpointError: the layer has its own mask or bias.
    """
    if not isinstance(attention_mask, AttentionMask) or position_bias is not None:
        got = "no mask of it" if position_bias is None else "a position bias"
        raise SetpointError(
            f"model.attention_backend = {NAME}: {type(module).__name__} hands it {got}\n"
            f"Valid: auto, eager"
        )
    if _running and (agreed := _running[-1].agreed) is not None:
        options = {**more, "scaling": scaling, "softcap": softcap, "s_aux": s_aux}
        agreed.append(_agrees(module, query, key, value, attention_mask, options))
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    scores = Scores(scaling, softcap or None, dropout, s_aux)
    return attention_mask.attend(query, key, value, scores), None


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    config: Any = None,
    dtype: torch.dtype = torch.float32,
    use_vmap: bool = False,
    **_: Any,
) -> AttentionMask:
    """Make the mask of some layers, for transformers' mask interface.

    Raises:
        SetpointError: no backend supports the mask, or the ranks that divide sequences do not know
            it.
    """
    from transformers.masking_utils import sdpa_mask

    inputs = _running[-1] if _running else None
    device = torch.device(device)
    kind = _kind_of(mask_function)
    window = local_size if kind == "sliding" else None
    chunk = local_size if kind == "chunked" else None
    if inputs is not None and kind is not None and (window, chunk) in inputs.masks:
        return inputs.masks[window, chunk]
    demands = demands_of(config) if inputs is None else inputs.demands
    groups = None if inputs is None else inputs.groups
    given = None if inputs is None else inputs.layout
    if given is None:
        layout = _layout(batch_size, q_length, kv_length, kv_offset, attention_mask, device)
        ends = q_offset + q_length == kv_offset + kv_length
    else:
        layout, ends = given, True
    dense = None
    if kind is None or not ends:
        if groups is not None:
            raise SetpointError(
                "parallel: context parallelism supports only window and chunk masks\n"
                "Valid: parallel.ulysses = 1, parallel.ring = 1"
            )
        allowed: Any = sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            mask_function,
            attention_mask,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
        allowed = allowed if given is None else allowed & visible(given, None)
        # Queries that see nothing are padding; they see all, as a softmax needs a key.
        dense = allowed | ~allowed.any(dim=-1, keepdim=True)
    elif chunk is not None and chunk < kv_offset + kv_length:
        if layout.positions is None and kv_offset:
            positions = torch.arange(kv_offset, kv_offset + kv_length, device=device)[None]
            layout = replace(layout, positions=positions)
        layout = layout.chunked(chunk)
    cached = q_length != kv_length and groups is None
    mask = AttentionMask(layout, window, groups, dense, cached)
    autocast = torch.is_autocast_enabled(device.type)
    mask.prepared = mask.prepare(
        demands, torch.get_autocast_dtype(device.type) if autocast else dtype
    )
    if inputs is not None and kind is not None:
        inputs.masks[window, chunk] = mask
    return mask


def register() -> None:
    """Register the attention with transformers."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if NAME not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, make_mask)


def demands_of(config: Any, model: nn.Module | None = None) -> Demands:
    """Requirements of an architecture on attention.

    Arguments:
        config: config of the text model.
        model: model whose parameters reveal attention sinks; None: no sinks.
    """
    heads = getattr(config, "num_attention_heads", None) or 1
    head = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // heads
    value = head
    if getattr(config, "kv_lora_rank", None):
        head = config.qk_nope_head_dim + config.qk_rope_head_dim
        value = config.v_head_dim
    names = () if model is None else (name for name, _ in model.named_parameters())
    return Demands(
        head,
        value,
        bool(getattr(config, "attn_logit_softcapping", None)),
        any((getattr(config, name, None) or 0) > 0 for name in DROPOUTS),
        any(name.endswith(".sinks") for name in names),
    )


def _agrees(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
    options: dict[str, Any],
) -> bool:
    """True if a layer's attention equals the eager function in the module of its class."""
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        return True
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        size * torch.randn(x.shape, generator=generator)
        for size, x in ((SCORES, query), (1.0, key), (1.0, value))
    )
    allowed = visible(mask.layout, mask.window) if mask.dense is None else mask.dense
    bias = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    expected = eager(module, query, key, value, bias, dropout=0.0, **options)[0]
    scores = Scores(options["scaling"], options["softcap"] or None, 0.0, options["s_aux"])
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    result = mask.attend(query, key, value, scores)
    return bool((result - expected).abs().max() <= AGREES * expected.abs().max())


def _kind_of(mask_function: Any) -> str | None:
    """Kind of a transformers mask: `causal`, `sliding` or `chunked`; None: another kind."""
    from transformers.masking_utils import causal_mask_function

    parts = (mask_function,)
    if mask_function.__qualname__ == "and_masks.<locals>.and_mask":
        parts = mask_function.__closure__[0].cell_contents
    kind = None
    for part in parts:
        if part is causal_mask_function:
            kind = kind or "causal"
        elif part.__qualname__ == "sliding_window_overlay.<locals>.inner_mask":
            kind = "sliding"
        elif part.__qualname__ == "chunked_overlay.<locals>.inner_mask":
            kind = "chunked"
        else:
            return None
    return kind


def _layout(
    batch: int, queries: int, keys: int, first: int, mask: Tensor | None, device: torch.device
) -> RowLayout:
    """Layout of calls by transformers itself, such as in its `generate`."""
    positions = None
    if mask is not None and mask.dim() == 2 and not bool(mask.all()):
        valid = mask.to(torch.bool)
        positions = (valid.cumsum(-1) - 1).where(valid, -1)[:, first : first + keys]
    return RowLayout(
        queries=queries,
        keys=keys,
        batch=batch,
        device=device,
        positions=positions,
        padded=positions is not None,
    )


class Rows(NamedTuple):
    """Mapping between packed rows and rows of one document each.

    Arguments:
        valid: (B, S) False for padding.
        row, column: (tokens,) position of each valid token in the rows of documents.
    """

    valid: Tensor
    row: Tensor
    column: Tensor
    shape: tuple[int, int]

    def put(self, packed: Tensor) -> Tensor:
        """Copy (B, S, ...) values to rows of documents, with zeros as padding."""
        padded = packed.new_zeros(*self.shape, *packed.shape[2:])
        padded[self.row, self.column] = packed[self.valid]
        return padded

    def take(self, padded: Tensor) -> Tensor:
        """Copy values of documents back to packed rows."""
        packed = padded.new_zeros(*self.valid.shape, *padded.shape[2:])
        packed[self.valid] = padded[self.row, self.column]
        return packed


def unpack_rows(documents: Tensor, positions: Tensor) -> Rows:
    """Map packed documents to separate rows; see `positions_in`."""
    valid = documents >= 0
    row, column = (positions == 0).flatten().cumsum(0)[valid.flatten()] - 1, positions[valid]
    return Rows(valid, row, column, (int(row.max()) + 1, int(column.max()) + 1))


def positions_in(documents: Tensor) -> Tensor:
    """(B, S) positions that restart in each document; -1 for padding."""
    positions = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = documents != documents.roll(1, dims=1)
    begins[:, 0] = True
    starts = positions.where(begins, 0).cummax(dim=1).values
    return (positions - starts).where(documents >= 0, -1)


class TextCache:
    """A transformers cache together with the padding of its rows.

    Used like `setpoint.model.attention.key_value_cache.KeyValueCache`.
    """

    def __init__(self, model: Any) -> None:
        from transformers import DynamicCache

        self.dynamic = DynamicCache(config=model.config)
        self.length = 0
        self._valid: Tensor | None = None

    def extend(self, tokens: Tensor, positions: Tensor | None) -> dict[str, Tensor]:
        """Append positions of new tokens, before the layers append keys and values.

        Arguments:
            tokens: (B, S).
            positions: (S,) or (B, S), negative for padding; None: the next ones.

        Returns:
            (B, S) position ids and, if there is padding, its (B, L) mask.
        """
        batch, count = tokens.shape
        if positions is None:
            positions = torch.arange(self.length, self.length + count, device=tokens.device)
        positions = positions.expand(batch, count)
        valid = positions >= 0
        if self._valid is None and self.length and not bool(valid.all()):
            self._valid = valid.new_ones(batch, self.length)
        if self._valid is not None:
            self._valid = torch.cat((self._valid, valid), dim=1)
        elif not self.length and not bool(valid.all()):
            self._valid = valid
        self.length += count
        given = {"position_ids": positions.clamp(min=0)}
        return given if self._valid is None else {**given, "attention_mask": self._valid.long()}

    def select(self, rows: Tensor) -> None:
        """Select and reorder rows of the batch."""
        for layer in self.dynamic.layers:
            # Recurrent layers have one method for both.
            pick: Any = getattr(layer, "batch_select_indices", None) or layer.reorder_cache
            pick(rows)
        if self._valid is not None:
            self._valid = self._valid[rows]
