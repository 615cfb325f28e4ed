"""Which layers attend to all positions and which to a window, as config.json lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from setpoint.model.attention.support import kind_of
from setpoint.model.pretrained.document import Document

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig

_KINDS = {"full_attention": "full", "sliding_attention": "sliding"}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def shortest_pattern(kinds: Sequence[str]) -> tuple[str, ...]:
    """The shortest row of kinds that gives a row when it is repeated.

    Returns:
        its beginning: `("sliding", "full")` for sliding, full, sliding.
    """
    for length in range(1, len(kinds)):
        if all(kind == kinds[index % length] for index, kind in enumerate(kinds)):
            return tuple(kinds[:length])
    return tuple(kinds)


def layer_kinds(config: TransformerConfig) -> list[str]:
    """The kind of each layer.

    Returns:
        `full` or `sliding`, as many as there are layers.
    """
    return [kind_of(config, layer) for layer in range(config.layers)]


def read_kinds(
    document: Document, layers: int, window: int | None, otherwise: Sequence[str]
) -> dict[str, Any]:
    """The fields for attention in windows.

    Arguments:
        document: the config.json, whose `layer_types` is read.
        window: positions in it; None if no layer slides, whatever `layer_types` says.
        otherwise: the kinds of the layers of a file without `layer_types`.

    Returns:
        `attention_pattern` and `sliding_window`.
    """
    named = document.value("layer_types")
    kinds = list(otherwise)
    if named is not None:
        is_list = isinstance(named, list) and all(isinstance(name, str) for name in named)
        if not is_list or len(named) != layers or any(name not in _KINDS for name in named):
            known = ", ".join(_KINDS)
            document.refuse("layer_types", f"must name a kind for each of {layers} layers: {known}")
            return {}
        kinds = [_KINDS[name] for name in named]
    if "sliding" not in kinds:
        return {"attention_pattern": ("full",), "sliding_window": None}
    if window is None:
        document.refuse("layer_types", "has sliding layers, and no sliding_window is given")
    return {"attention_pattern": shortest_pattern(kinds), "sliding_window": window}


def write_kinds(config: TransformerConfig) -> list[str]:
    """The value of `layer_types`."""
    return [_NAMES[kind] for kind in layer_kinds(config)]
