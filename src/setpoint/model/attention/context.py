"""What all layers share in one forward pass: rotations, what is visible, and the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from setpoint.model.attention.backend import Backend, Scores
from setpoint.model.attention.cache import KeyValueCache
from setpoint.model.attention.config import Backend as BackendName
from setpoint.model.attention.config import Kind
from setpoint.model.attention.layout import Layout
from setpoint.model.attention.selection import choose_backend
from setpoint.model.attention.support import kinds_of
from setpoint.model.autocast import cast_once
from setpoint.model.rope.rotation import Rotation, rotate, rotation

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig
    from setpoint.shapes.batch import ContextGroups, Lengths


# Not a NamedTuple: engines that cast the inputs of a module look into those, and rotations must
# stay in fp32.
@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What layers of one kind share.

    Arguments:
        mask: as the backend takes it.
        rotation: of the new positions; None: positions are not rotated.
        first: slots of the cache before this one are masked.
    """

    backend: Backend
    mask: Any
    rotation: Rotation | None
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class AttentionContext:
    """Made once for each forward pass, and handed to every layer.

    Arguments:
        cache: where keys and values of the tokens before lie; None: nowhere.
    """

    positions: Tensor
    views: dict[Kind, View]
    cache: KeyValueCache | None = None

    def apply_rotary(self, x: Tensor, kind: Kind) -> Tensor:
        """Rotate queries or keys by their positions, if the model does.

        Returns:
            the same shape and dtype.
        """
        by = self.views[kind].rotation
        return x if by is None else rotate(x, by)

    def attend(
        self, kind: Kind, query: Tensor, key: Tensor, value: Tensor, scores: Scores
    ) -> Tensor:
        """Mix the values that the queries of a layer see; see `Backend.attend`."""
        view = self.views[kind]
        # Norms give fp32 under a GPU's autocast, and flash kernels take one dtype of two bytes.
        query, key, value = map(cast_once, (query, key, value))
        return view.backend.attend(query, key, value, view.mask, scores)

    def update_cache(self, layer: int, kind: Kind, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Append what a layer keeps of the new tokens to the cache, if there is one.

        Returns:
            (B, L, ...) each: of all tokens that the layer's queries may see.
        """
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
) -> AttentionContext:
    """Prepare one forward pass.

    Arguments:
        x: (B, S, ...) tokens or hidden states, for their shape and device.
        positions: (S,), the same in each row and without padding; or (B, S), negative where there
            is padding. None: they count up from 0, or go on where the cache ends.
        documents: (B, S) integers: tokens see those of their own document only. None: each row is
            one document.
        cache: of the tokens before; it takes up the new ones.
        groups: the ranks that divide each sequence, of which x is this one's part; positions and
            documents are of whole sequences then. None: sequences are whole.
        lengths: see `Layout`.
        dtype: of queries, keys and values.

    Raises:
        ValueError: positions or documents have another shape than the tokens, or positions for
            all rows are negative; or a cache is given for a part of a sequence.
        SetpointError: the backend does not run here.
    """
    batch, count = x.shape[:2]
    if groups is not None:
        count *= groups.parts.size
        if cache is not None:
            raise ValueError("a cache takes whole sequences, and ranks divide this model's")
    _check_shape("positions", positions, batch, count)
    _check_shape("documents", documents, batch, count)
    if positions is not None and positions.dim() == 1:
        _refuse_padding(positions)
    if cache is not None:
        layout = cache.extend((batch, count), x.device, positions, documents)
    else:
        layout = Layout(
            queries=count,
            keys=count,
            batch=batch,
            device=x.device,
            positions=None if positions is None else torch.atleast_2d(positions),
            padded=positions is not None and positions.dim() == 2,
            documents=documents,
            lengths=lengths,
        )
    if positions is None:
        start = layout.keys - count
        positions = torch.arange(start, start + count, device=x.device)
    if groups is not None:
        positions = groups.parts.take(positions, dim=-1)
    turned: dict[tuple[float, bool], Rotation] = {}
    views: dict[Kind, View] = {}
    for kind in kinds_of(config):
        window = config.sliding_window if kind == "sliding" else None
        first = 0 if cache is None or window is None else cache.trim(layout, window)
        masked, cached = layout.is_masked(window), cache is not None
        ring = groups is not None and groups.ring is not None
        name, backend = choose_backend(
            config, x.device, dtype, masked=masked, cached=cached, ring=ring
        )
        if groups is not None:
            backend = over_ranks(backend, name, groups)
        mask = backend.prepare_mask(layout.without_first(first), window)
        views[kind] = View(backend, mask, _rotation(config, kind, positions, turned), first)
    return AttentionContext(positions, views, cache)


def over_ranks(backend: Backend, name: BackendName, groups: ContextGroups) -> Backend:
    """Let a backend attend to what other ranks have of the sequences.

    Arguments:
        name: of the backend; a ring computes blocks itself, by the kernels of that name.
    """
    over: Any = backend  # methods that are kept from the compiler have lost their types
    # Imported here: one process has no use for them.
    if groups.ring is not None:
        from setpoint.model.attention.ring import Ring

        over = Ring(name, groups.parts, groups.ring)
    if groups.ulysses is not None:
        from setpoint.model.attention.ulysses import Ulysses

        over = Ulysses(over, groups.ulysses)
    return over


def _rotation(
    config: TransformerConfig,
    kind: Kind,
    positions: Tensor,
    known: dict[tuple[float, bool], Rotation],
) -> Rotation | None:
    """The rotation in layers of a kind, computed once where kinds have the same."""
    if config.positions != "rotary":
        return None
    own = config.rope_base_sliding is not None and kind == "sliding"
    base = config.rope_base_sliding if own else config.rope_base
    assert base is not None
    if (base, own) not in known:
        size = config.head_dim if config.mla is None else config.mla.rope_head_dim
        known[base, own] = rotation(positions, size, base, None if own else config.rope_scaling)
    return known[base, own]


def _check_shape(name: str, given: Tensor | None, batch: int, count: int) -> None:
    shapes = [(batch, count), (count,)] if name == "positions" else [(batch, count)]
    if given is not None and tuple(given.shape) not in shapes:
        valid = " or ".join(map(str, shapes))
        raise ValueError(f"{name} have shape {tuple(given.shape)}; tokens need {valid}")


def _refuse_padding(positions: Tensor) -> None:
    message = "positions of all rows must not be negative; give padding by (B, S) positions"
    if positions.is_cpu and not torch.compiler.is_compiling():
        if bool((positions < 0).any()):
            raise ValueError(message)
    else:
        # Without waiting for the device.
        torch._assert_async(  # pyright: ignore[reportPrivateImportUsage]  # there is no other
            (positions >= 0).all(), message
        )
