"""Axes of ranks that a model of transformers fits, by its class and config alone."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from setpoint.config import SetpointError
from setpoint.model.huggingface import stages
from setpoint.model.huggingface.attention import NAME
from setpoint.model.huggingface.build import build_huggingface
from setpoint.model.huggingface.division import tensor_plan
from setpoint.model.huggingface.experts import experts_of
from setpoint.model.huggingface.logits import read_logits

if TYPE_CHECKING:
    from setpoint.model.foreign import HuggingFaceModel as HuggingFaceConfig
    from setpoint.model.huggingface.language_model import HuggingFaceModel

ATTENDING = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
"""Kinds of layers that keep no state from token to token."""


class Unfit(NamedTuple):
    """An axis that a model does not fit.

    Arguments:
        most: a number of which valid degrees are divisors.
    """

    axis: str
    why: str
    most: int = 1


def unfit_axes(config: HuggingFaceConfig, degrees: dict[str, int]) -> Iterator[Unfit]:
    """Find the axes by which a model cannot be divided.

    Arguments:
        degrees: tensor, pipeline, ring, ulysses, expert and expert_tensor.

    Raises:
        SetpointError: the model cannot be made.
    """
    with torch.device("meta"):
        made = build_huggingface(config, 1)
    model: Any = made.model
    kind = type(model).__name__
    if degrees["tensor"] > 1:
        yield from _unfit_matrices(model, degrees["tensor"])
    if degrees["pipeline"] > 1:
        try:
            stages.require_parts(model)
        except SetpointError as error:
            yield Unfit("pipeline", _reason(error))
        if read_logits(model) is None:
            yield Unfit("pipeline", f"the output matrix of {kind} has a bias, which no head knows")
    for axis in ("ring", "ulysses"):
        if degrees[axis] > 1:
            yield from _unfit_sequences(made, axis, degrees)
    if degrees["expert"] * degrees["expert_tensor"] > 1:
        yield from _unfit_experts(model, degrees)


def _unfit_matrices(model: Any, size: int) -> Iterator[Unfit]:
    try:
        plan = tensor_plan(model)
    except SetpointError as error:
        yield Unfit("tensor", _reason(error))
        return
    counts: dict[int, str] = {}
    for path, word in plan.items():
        name, _, pieces = word.partition(" ")
        if name not in ("column", "row", "row_whole_input"):
            continue
        module: Any = model.get_submodule(path)
        if pieces:
            heads = int(pieces.partition("*")[0])
            counts.setdefault(heads, f"{heads} heads of {path}")
        else:
            is_row = name != "column"
            width = module.in_features if is_row else module.out_features
            counts.setdefault(width, f"{width} {'inputs' if is_row else 'outputs'} of {path}")
    most = gcd(*counts)
    for count, text in counts.items():
        if count % size:
            yield Unfit("tensor", f"{size} ranks cannot divide the {text}", most)
            return


def _unfit_sequences(made: HuggingFaceModel, axis: str, degrees: dict[str, int]) -> Iterator[Unfit]:
    keys: Any = made.model.config
    text = keys.get_text_config()
    kind = type(made.model).__name__
    others = set(getattr(text, "layer_types", None) or ()) - ATTENDING
    if made.attention != NAME or others:
        what = f"layers of {', '.join(sorted(others))}" if others else f"{made.attention} attention"
        yield Unfit(axis, f"{kind} takes whole sequences, as it has {what}")
    elif made.balances:
        yield Unfit(
            axis, "model.overrides.output_router_logits = true needs the routers of whole sequences"
        )
    elif axis == "ring" and made.demands.sinks:
        yield Unfit(axis, f"{kind} has attention sinks, which are in no block of a ring")
    elif axis == "ulysses":
        heads = text.num_attention_heads // degrees["tensor"]
        if heads % degrees[axis]:
            why = f"{degrees[axis]} ranks cannot divide the {heads} heads that a rank has"
            yield Unfit(axis, why, heads)


def _unfit_experts(model: nn.Module, degrees: dict[str, int]) -> Iterator[Unfit]:
    all_experts = experts_of(model)
    kind = type(model).__name__
    if not all_experts:
        axis = "expert" if degrees["expert"] > 1 else "expert_tensor"
        yield Unfit(axis, f"{kind} has no experts in one tensor for each projection")
        return
    experts: Any = all_experts[0][1]
    ranks, inner = degrees["expert"], degrees["expert_tensor"]
    count = next(experts.parameters()).shape[0]
    if count % ranks:
        yield Unfit("expert", f"{ranks} ranks cannot divide the {count} experts of {kind}", count)
    width = experts.down_proj.shape[2 if getattr(experts, "is_transposed", True) is False else 1]
    if width % inner:
        yield Unfit("expert_tensor", f"{inner} ranks cannot divide experts of {width}", width)


def _reason(error: SetpointError) -> str:
    """The text of an error, without the field before it and the values behind it."""
    return str(error).partition(": ")[2].partition("\n")[0]
