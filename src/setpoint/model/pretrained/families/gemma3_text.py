"""Gemma 3's decoder: Gemma 2 with norms of queries and keys, and other positions in windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from setpoint.model.pretrained.decoder import ALL_NORMS, decoder_pieces
from setpoint.model.pretrained.document import Document
from setpoint.model.pretrained.families.gemma2 import (
    GEMMA_WRITES,
    gemma_misfits,
    read_gemma,
    write_gemma,
)
from setpoint.model.pretrained.family import Family, Misfit
from setpoint.model.pretrained.kinds import layer_kinds, read_kinds
from setpoint.model.pretrained.pieces import Piece
from setpoint.model.pretrained.rope import read_rules, write_rules

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig

GLOBAL, LOCAL = 1_000_000.0, 10_000.0
"""The bases of a file that names none."""


class Gemma3Text(Family):
    """Gemma 3 without images."""

    model_type = "gemma3_text"
    architecture = "Gemma3ForCausalLM"
    writes = (*GEMMA_WRITES, "rope_base_sliding")
    fixed: ClassVar[Mapping[str, object]] = {
        "norm": "rms_norm, zero-centered",
        "norm_placement": "both",
        "qk_norm": True,
    }

    def read(self, document: Document) -> dict[str, Any]:
        """See `Family.read`."""
        fields = read_gemma(document, length=131_072, cap=None)
        layers = fields["layers"]
        document.must_be(
            "attn_logit_softcapping", (None,), "transformers does not apply it in Gemma 3"
        )
        window = document.integer("sliding_window", 4096, optional=True)
        named = "sliding_window_pattern"
        named = named if document.has(named) else f"_{named}"
        pattern = document.integer(named, 6)
        document.value("sliding_window_pattern")
        document.value("_sliding_window_pattern")
        kinds = ["sliding" if (index + 1) % pattern else "full" for index in range(layers)]
        found = read_kinds(document, layers, window, kinds)
        rope = _read_rope(document, fields["max_sequence_length"])
        if found.get("attention_pattern") == ("full",):
            rope["rope_base_sliding"] = None
        elif found.get("attention_pattern") == ("sliding",):
            # With one kind of layers there is one base.
            base = rope["rope_base_sliding"] or rope["rope_base"]
            rope = {"rope_base": base, "rope_scaling": None, "rope_base_sliding": None}
        return {**fields, **found, **rope, "qk_norm": True}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """See `Family.write`."""
        scaling = write_rules(config.rope_scaling)
        local = config.rope_base_sliding or config.rope_base
        return {
            **write_gemma(config),
            "attn_logit_softcapping": None,
            "rope_theta": config.rope_base,
            "rope_local_base_freq": local,
            "rope_scaling": scaling or None,
            "rope_parameters": {
                "full_attention": {
                    "rope_theta": config.rope_base,
                    "rope_type": "default",
                    **scaling,
                },
                "sliding_attention": {"rope_theta": local, "rope_type": "default"},
            },
        }

    def misfits(self, config: TransformerConfig) -> Iterator[Misfit]:
        """See `Family.misfits`."""
        yield from super().misfits(config)
        yield from gemma_misfits(config)
        slides = "sliding" in layer_kinds(config)
        if slides and config.rope_scaling is not None and config.rope_base_sliding is None:
            yield Misfit("rope_base_sliding", "null", "a number, with rope_scaling")

    def pieces(self, config: TransformerConfig) -> list[Piece]:
        """See `Family.pieces`."""
        return decoder_pieces(config, ALL_NORMS)


def _read_rope(document: Document, length: int) -> dict[str, Any]:
    base = document.number("rope_theta", None)
    local = document.number("rope_local_base_freq", None)
    older, newer = document.value("rope_scaling"), document.value("rope_parameters") or {}
    if not isinstance(newer, Mapping) or set(newer) - {"full_attention", "sliding_attention"}:
        document.refuse("rope_parameters", "must have full_attention and sliding_attention")
        newer = {}
    if not isinstance(older or {}, Mapping):
        document.refuse("rope_scaling", "must be a mapping")
        older = None
    parts = cast(Mapping[str, Any], newer)
    if not all(isinstance(rules or {}, Mapping) for rules in parts.values()):
        document.refuse("rope_parameters", "must have a mapping for each kind of layers")
        parts = cast(Mapping[str, Any], {})
    full = {**(parts.get("full_attention") or {}), **(older or {})}
    sliding = parts.get("sliding_attention") or {}
    named = "rope_parameters" if parts else "rope_scaling"
    rope_base, scaling = read_rules(document, named, full, base or GLOBAL, length)
    rope_local, local_scaling = read_rules(document, named, sliding, local or LOCAL, length)
    if local_scaling is not None:
        document.refuse("rope_parameters", "positions in windows cannot be stretched")
    for name, given, used in (
        ("rope_theta", base, rope_base),
        ("rope_local_base_freq", local, rope_local),
    ):
        if given is not None and given != used:
            document.refuse(name, f"contradicts the {used:g} of rope_parameters")
    return {
        "rope_base": rope_base,
        "rope_scaling": scaling,
        "rope_base_sliding": rope_local if (rope_local, None) != (rope_base, scaling) else None,
    }


FAMILY = Gemma3Text()
"""The family."""
