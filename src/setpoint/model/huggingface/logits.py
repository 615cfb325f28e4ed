"""The projection from the last hidden states of transformers' models to logits."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from setpoint.model.transformer import Output
from setpoint.shapes.outcome import Projection, VocabularyPart, weight_in_use

SCALES = ("logit_scale", "lm_head_multiplier")
"""Keys of config.json for the logit multiplier (Cohere, Falcon H1)."""
DIVISORS = ("logits_scaling",)
"""Keys for the divisor of logits (Granite)."""
SOFT_CAPS = ("final_logit_softcapping",)
"""Keys for the soft cap of logits (Gemma)."""
LARGE = 50.0
"""Size of logits in trial runs, large enough to reveal soft caps."""
SAME = 1e-5
"""Relative tolerance of logits."""


class Logits(NamedTuple):
    """Scale and soft cap after the output matrix.

    Arguments:
        scale, soft_cap: see `Projection`.
        rows: of the whole matrix.
    """

    scale: float
    soft_cap: float | None
    rows: int

    def projection(self, output: nn.Module, part: VocabularyPart | None) -> Projection:
        """The projection by an output layer, or by this rank's part of it."""
        return Projection(weight_in_use(output), self.rows, self.scale, self.soft_cap, part)


def decoder_of(model: Any) -> Any:
    """The part of a causal language model that returns hidden states."""
    decoder = model.base_model
    if decoder is not model:
        return decoder
    # Some name another part as their base (Llama 4).
    parts = (part for part in model.children() if hasattr(part, "get_input_embeddings"))
    return next(parts, model)


def read_logits(model: Any) -> Logits | None:
    """Read scale and soft cap of a model's logits, and let its output layer call a head.

    Returns:
        None if there is no output matrix, or it has a bias.
    """
    output = model.get_output_embeddings()
    if type(output) not in (nn.Linear, Output) or output.bias is not None:
        return None
    output.__class__ = Output
    keys = model.config.get_text_config()
    scale = 1.0
    for name in SCALES:
        scale *= getattr(keys, name, None) or 1.0
    for name in DIVISORS:
        scale /= getattr(keys, name, None) or 1.0
    caps = [cap for name in SOFT_CAPS if (cap := getattr(keys, name, None))]
    return Logits(scale, caps[0] if caps else None, output.weight.shape[0])


def is_right(logits: Logits, model: Any, tokens: Tensor) -> bool:
    """True if the model itself computes the same logits.

    Arguments:
        tokens: (B, S); the model is in evaluation mode.
    """
    output = model.get_output_embeddings()
    projection = logits.projection(output, None)
    hidden = decoder_of(model)(input_ids=tokens, use_cache=False)[0]
    if hidden.shape[-1] != projection.weight.shape[1]:
        return False
    size = functional.linear(hidden, projection.weight).abs().max() * abs(logits.scale)
    factor = float(LARGE / size) if size > 0 else 1.0
    hook = output.register_forward_pre_hook(lambda _, given: (given[0] * factor,))
    try:
        wanted = model(input_ids=tokens, use_cache=False).logits
    finally:
        hook.remove()
    mine = projection.logits(hidden * factor)
    return mine.shape == wanted.shape and bool(
        (mine - wanted).abs().max() <= SAME * wanted.abs().max()
    )


def balance_loss(model: Any, routers: Any, mask: Tensor | None) -> Tensor:
    """Unweighted load-balancing loss, computed by the model's own function.

    Arguments:
        routers: router logits of each layer.
        mask: (B, S), 0 for padding; None without padding.
    """
    compute = sys.modules[type(model).__module__].load_balancing_loss_func
    return compute(routers, model.num_experts, model.num_experts_per_tok, mask)
