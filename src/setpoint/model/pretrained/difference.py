"""What two transformers differ in, field by field, as far as the same weights cannot be both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from setpoint.config import Config, to_plain
from setpoint.model.moe.config import MoE
from setpoint.model.pretrained.family import PLAIN, SIZES, meaning_of, shown

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig

TRAINING: Final = (
    "balance_loss",
    "sequence_balance_loss",
    "router_z_loss",
    "gradient_scale",
    "load_sequences",
    "bias_rate",
    "bias_schedule",
    "packed",
    "implementation",
)
"""Fields of sections that play a part in training only, or in how the weights lie in memory."""


class Different(NamedTuple):
    """A field of which two models have different values.

    Arguments:
        field: of `TransformerConfig`.
    """

    field: str
    ours: str
    theirs: str


def differences(ours: TransformerConfig, theirs: TransformerConfig) -> list[Different]:
    """Compare what decides the weights and the logits.

    How many positions there are counts only where each has an embedding; dropout, initialization
    and the like do not count. Nor does the vocabulary, which may grow.
    """
    names = [*SIZES, *PLAIN]
    if "learned" not in (ours.positions, theirs.positions):
        names.remove("max_sequence_length")
    found: list[Different] = []
    for name in names:
        left, right = getattr(ours, name), getattr(theirs, name)
        if isinstance(left, Config) and type(left) is type(right):
            inside = _inside(name, left, right)
            # Experts without a width of their own have that of the feed-forward network.
            widths = {ours.ffn_dim, *_width(left), *_width(right)}
            found += [d for d in inside if d.field != "moe.expert_dim" or len(widths) > 1]
        elif meaning_of(ours, name) != meaning_of(theirs, name):
            values = shown(meaning_of(ours, name)), shown(meaning_of(theirs, name))
            found.append(Different(name, *values))
    return found


def _width(moe: Config) -> tuple[int, ...]:
    return (moe.expert_dim,) if isinstance(moe, MoE) and moe.expert_dim is not None else ()


def _inside(name: str, ours: Config, theirs: Config) -> list[Different]:
    left, right = to_plain(ours), to_plain(theirs)
    if "router" in left:
        left, right = ({**p, **_router(p)} for p in (left, right))
    return [
        Different(f"{name}.{key}", shown(left[key]), shown(right[key]))
        for key in left
        if key not in TRAINING and left[key] != right[key]
    ]


def _router(moe: dict[str, object]) -> dict[str, object]:
    router = moe["router"]
    assert isinstance(router, dict)
    return {"router": {key: value for key, value in router.items() if key not in TRAINING}}
