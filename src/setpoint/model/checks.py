"""What must hold between the fields of a transformer, and which of them have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Problem

if TYPE_CHECKING:
    from setpoint.model.config import Transformer


def check_heads(c: Transformer) -> Iterator[Problem]:
    """Heads divide the width, and rotary embedding has pairs of components to turn."""
    if c.mla is not None:
        return  # it says itself how large heads are
    is_derived = c.head_dim == c.standard_head_dim()
    if is_derived and c.heads * c.head_dim != c.dim:
        yield Problem(
            "heads",
            f"dim = {c.dim} cannot be divided among {c.heads} heads",
            valid=_fitting_heads(c),
            also=("dim",),
            hint=f"Or keep heads and set dim to {_fitting_widths(c)}, or set head_dim.",
        )
    elif c.head_dim % 2 and c.positions == "rotary":
        sizes = [str(size) for size in (c.head_dim - 1, c.head_dim + 1)]
        hint = "Rotary embedding turns pairs of components."
        if is_derived:
            heads = _fitting_heads(c)
            hint += f" Or keep heads and set dim to {_fitting_widths(c)}"
            hint += f", or keep dim and set heads to {heads[0]}." if heads else "."
        yield Problem(
            "head_dim",
            f"{c.head_dim} is odd, and must be even",
            valid=sizes,
            also=("dim", "heads") if is_derived else (),
            hint=hint,
        )


def _fitting_heads(c: Transformer) -> list[str]:
    """Numbers of heads that divide dim into even parts, the nearest first."""
    from setpoint.model.divisors import nearest_divisors

    found = nearest_divisors(c.dim // 2, c.heads) if c.dim % 2 == 0 else ()
    return [str(heads) for heads in found]


def _fitting_widths(c: Transformer) -> str:
    """The widths next to dim that the heads divide into even parts."""
    below = c.dim // (2 * c.heads) * 2 * c.heads
    return " or ".join(str(width) for width in (below, below + 2 * c.heads) if width)


def check_kv_heads(c: Transformer) -> Iterator[Problem]:
    """Query heads are shared evenly."""
    if c.mla is None and c.heads % c.kv_heads:
        from setpoint.model.divisors import nearest_divisors

        yield Problem(
            "kv_heads",
            f"{c.heads} heads cannot be shared evenly by {c.kv_heads} key-value heads",
            valid=[str(count) for count in nearest_divisors(c.heads, c.kv_heads)],
            also=("heads",),
        )


def check_windows(c: Transformer) -> Iterator[Problem]:
    """The pattern of layers is there, and sliding ones know their window."""
    if not c.attention_pattern:
        yield Problem(
            "attention_pattern",
            "is empty, so that no layer knows what it attends to",
            valid=('["full"]', '["sliding", "full"]'),
        )
    elif c.count_layers("sliding") and c.sliding_window is None:
        yield Problem(
            "sliding_window",
            "must be set, since layers with a sliding window do not know how far they see",
            valid=tuple(str(max(1, c.max_sequence_length // part)) for part in (4, 2)),
            also=("attention_pattern",),
        )


def check_mla(c: Transformer) -> Iterator[Problem]:
    """Latent attention has positions to rotate, and widths that muP can speak of."""
    if c.mla is None:
        return
    size = c.mla.rope_head_dim
    if size % 2 and c.positions == "rotary":
        yield Problem(
            "mla.rope_head_dim",
            f"{size} is odd, and must be even",
            valid=(str(size - 1), str(size + 1)),
            hint="Rotary embedding turns pairs of components.",
        )
    if c.mup is not None:
        yield Problem(
            "mup.base_dim",
            "muP does not go with mla: its rules are for matrices from width to width, and latents "
            "have widths of their own",
            also=("mla.kv_rank",),
            hint="Set mup or mla to null.",
        )


def dead_ffn_rule(c: Transformer) -> str | None:
    """Say why the width of feed-forward networks is not derived.

    Returns:
        the reason; None where it is.
    """
    if c.ffn_dim != c.standard_ffn_dim():
        return f"ffn_dim is given ({c.ffn_dim}), so it is not derived"
    return dead_ffn_dim(c)


def dead_ffn_dim(c: Transformer) -> str | None:
    """Say why no network has the model's width.

    Returns:
        the reason; None where one has.
    """
    if c.moe is None or c.moe.expert_dim is None:
        return None
    reason = dead_without_dense(c)
    return reason and f"{reason}, and moe.expert_dim is the width of experts"


def dead_without_dense(c: Transformer) -> str | None:
    """Say why what belongs to dense feed-forward networks is not read.

    Returns:
        the reason; None where it is.
    """
    moe = c.moe
    if moe is None or moe.layers_with_experts(c.layers) < c.layers:
        return None
    return "all layers have experts (moe), so that there is no dense feed-forward network"


def dead_rotary(c: Transformer) -> str | None:
    """Say why nothing is rotated.

    Returns:
        the reason; None where something is.
    """
    if c.positions != "rotary":
        return f"positions = {c.positions}, so that nothing is rotated"
    return None


def dead_full_rotary(c: Transformer) -> str | None:
    """Say why the rotary base and scaling of full layers are not read.

    Returns:
        the reason; None where they are.
    """
    if c.rope_base_sliding is not None and not c.count_layers("full"):
        return "all layers have a sliding window, and rope_base_sliding is what they rotate by"
    return dead_rotary(c)


def dead_sliding(c: Transformer) -> str | None:
    """Say why there is no sliding window.

    Returns:
        the reason; None where there is one.
    """
    if c.count_layers("sliding"):
        return None
    if "sliding" in c.attention_pattern:
        return (
            f"of attention_pattern the first {c.layers} count, as many as there are layers, and "
            f"none of these is sliding"
        )
    return "no layer has a sliding window (attention_pattern)"
