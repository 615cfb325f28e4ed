"""Axes of ranks that a model of transformers fits, by its class and config alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from setpoint.config import SetpointError
from setpoint.model.huggingface import stages
from setpoint.model.huggingface.attention import NAME
from setpoint.model.huggingface.division import tensor_plan
from setpoint.model.huggingface.experts import experts_of, why_no_width
from setpoint.model.huggingface.logits import read_logits

if TYPE_CHECKING:
    from setpoint.model.huggingface.language_model import HuggingFaceModel
    from setpoint.parallel.config import Parallel

ATTENDING = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
"""Kinds of layers that keep no state from token to token."""


class Undivided(NamedTuple):
    """An axis of `parallel` by which a model cannot be divided.

    Arguments:
        field: of the section.
    """

    field: str
    why: str


def undivided(made: HuggingFaceModel, parallel: Parallel) -> Iterator[Undivided]:
    """Find the axes by which a model cannot be divided.

    Arguments:
        made: on the meta device, with the adapter of the job.
    """
    model: Any = made.model
    kind = type(model).__name__
    degrees = parallel.degrees
    if degrees["tensor"] > 1:
        yield from _undivided_matrices(model, degrees["tensor"])
    if degrees["pipeline"] > 1:
        try:
            parts = stages.parts_of(model)
            if parallel.pipelining.split is None:
                yield from _too_many_stages(kind, parts, parallel)
        except SetpointError as error:
            yield Undivided("pipeline", _reason(error))
        if read_logits(model) is None:
            why = f"the output matrix of {kind} has a bias, which no head knows"
            yield Undivided("pipeline", why)
    for axis in ("ring", "ulysses"):
        if degrees[axis] > 1:
            yield from _undivided_sequences(made, axis, degrees)
    if parallel.divides_experts:
        yield from _undivided_experts(model, parallel)


def _too_many_stages(kind: str, parts: list[str], parallel: Parallel) -> Iterator[Undivided]:
    ranks = parallel.degrees["pipeline"]
    count = parallel.pipelining.stages(ranks)
    if count > len(parts):
        each = count // ranks
        total = f"{ranks} ranks with {each} stages each = {count}" if each > 1 else f"{count}"
        why = f"{total} stages are more than the {len(parts)} parts of {kind}: the embedding, "
        yield Undivided("pipeline", f"{why}{len(parts) - 2} layers and the output")


def _undivided_matrices(model: Any, size: int) -> Iterator[Undivided]:
    try:
        plan = tensor_plan(model)
    except SetpointError as error:
        yield Undivided("tensor", _reason(error))
        return
    for path, word in plan.items():
        name, _, pieces = word.partition(" ")
        module: Any = model.get_submodule(path.rpartition(".")[0] if name == "part" else path)
        if pieces:
            shared = "key-value " if path.endswith(("k_proj", "v_proj")) else ""
            count, what = int(pieces.partition("*")[0]), f"{shared}heads"
        elif name == "column":
            count, what = module.out_features, "outputs"
        elif name in ("row", "row_whole_input"):
            count, what = module.in_features, "inputs"
        elif name == "part":
            count, what = module.get_parameter(path.rpartition(".")[2]).shape[0], "elements"
        else:
            continue
        if count % size:
            yield Undivided("tensor", f"{size} ranks cannot divide the {count} {what} of {path}")
            return
    rows = model.config.get_text_config().vocab_size
    if rows <= (size - 1) * -(-rows // size):
        yield Undivided("tensor", f"{size} ranks leave none of the {rows} tokens to the last one")


def _undivided_sequences(
    made: HuggingFaceModel, axis: str, degrees: Mapping[str, int]
) -> Iterator[Undivided]:
    keys: Any = made.model.config
    text = keys.get_text_config()
    kind = type(made.model).__name__
    others = set(getattr(text, "layer_types", None) or ()) - ATTENDING
    if made.attention != NAME or others:
        what = f"layers of {', '.join(sorted(others))}" if others else f"{made.attention} attention"
        yield Undivided(axis, f"{kind} takes whole sequences, as it has {what}")
    elif made.balances:
        yield Undivided(
            axis, "model.overrides.output_router_logits = true needs the routers of whole sequences"
        )
    elif axis == "ring" and made.demands.sinks:
        yield Undivided(axis, f"{kind} has attention sinks, which are in no block of a ring")
    elif axis == "ulysses":
        heads = text.num_attention_heads // degrees["tensor"]
        if heads % degrees[axis]:
            why = f"{degrees[axis]} ranks cannot divide the {heads} heads that a rank has"
            yield Undivided(axis, why)


def _undivided_experts(model: nn.Module, parallel: Parallel) -> Iterator[Undivided]:
    ranks, inner = parallel.expert, parallel.expert_tensor
    all_experts = experts_of(model)
    kind = type(model).__name__
    if not all_experts:
        axis = "expert" if ranks > 1 else "expert_tensor"
        yield Undivided(axis, f"{kind} has no experts in one tensor for each projection")
    for path, experts, _ in all_experts:
        count = next(experts.parameters()).shape[0]
        if count % ranks:
            yield Undivided("expert", f"{ranks} ranks cannot divide the {count} experts of {kind}")
            return
        why = why_no_width(path, experts, inner) if inner > 1 else None
        if why is not None:
            yield Undivided("expert_tensor", why)
            return


def _reason(error: SetpointError) -> str:
    """The text of an error, without the field before it and the values behind it."""
    return str(error).partition(": ")[2].partition("\n")[0]
