"""A model cut into the stages of a pipeline: chained, they are the whole."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from setpoint.model.attention.key_value_cache import KeyValueCache
from setpoint.model.transformer import Transformer
from setpoint.shapes.outcome import Outcome, Projection

from ..support.snapshots import refused
from .families import FAMILIES
from .parts import part
from .small import VOCAB, small_model

LAYERS = 4
# Three stages: one layer with what comes before, two in the middle, one with what comes after.
CUTS = (0, 1, 3, LAYERS)


def stages(changes: dict[str, Any]) -> list[Transformer]:
    return [part(range(*cut), seed=1, layers=LAYERS, **changes) for cut in pairwise(CUTS)]


def whole(changes: dict[str, Any]) -> Transformer:
    return small_model(seed=1, layers=LAYERS, **changes)


def tokens(length: int = 9) -> Tensor:
    return torch.randint(VOCAB, (2, length), generator=torch.Generator().manual_seed(0))


def head(hidden: Tensor, projection: Projection) -> Tensor:
    return projection.logits(hidden).logsumexp(-1).sum()


@pytest.mark.parametrize("name", FAMILIES)
def test_stages_hold_what_the_whole_holds(name: str) -> None:
    expected = whole(FAMILIES[name]).state_dict()
    seen: set[str] = set()
    for stage in stages(FAMILIES[name]):
        for key, value in stage.state_dict().items():
            assert torch.equal(value, expected[key]), key
            seen.add(key)
    assert seen == expected.keys()


@pytest.mark.parametrize("name", FAMILIES)
def test_stages_compute_what_the_whole_computes(name: str) -> None:
    """Backward as a pipeline does it: a gradient of the stream goes from stage to stage."""
    model, parts = whole(FAMILIES[name]), stages(FAMILIES[name])
    # Neither positions nor documents are what a stage would take for granted.
    places = {
        "positions": torch.arange(9).sub(2).expand(2, -1).contiguous(),
        "documents": torch.tensor([[0] * 5 + [1] * 4, [3] * 9]),
    }
    expected = model(tokens(), head=head, **places)
    entries: list[Tensor] = [tokens()]
    outcomes: list[Outcome] = []
    for stage in parts:
        outcome = stage(entries[-1], head=head, **places)
        outcomes.append(outcome)
        entries.append(outcome.result.detach().requires_grad_())
    assert torch.equal(outcomes[-1].result, expected.result)

    _add(expected).backward()
    gradient = torch.ones(())
    for outcome, entry in zip(reversed(outcomes), reversed(entries[:-1]), strict=True):
        ends = [(outcome.result, gradient)]
        if outcome.auxiliary is not None:
            ends.append((outcome.auxiliary, torch.ones(())))
        torch.autograd.backward(*zip(*ends, strict=True))
        gradient = entry.grad
    for key, parameter in model.named_parameters():
        owners = [dict(stage.named_parameters()).get(key) for stage in parts]
        total = sum(owner.grad for owner in owners if owner is not None)
        torch.testing.assert_close(total, parameter.grad, rtol=1e-5, atol=1e-6)

    reports = [outcome.routing for outcome in outcomes if outcome.routing is not None]
    if expected.routing is None:
        assert not reports
    else:
        # Each reports zeros for layers of other stages.
        assert torch.equal(sum(one.counts for one in reports), expected.routing.counts)
        auxiliary = sum(one.auxiliary for one in outcomes if one.auxiliary is not None)
        torch.testing.assert_close(auxiliary, expected.auxiliary)


def _add(outcome: Outcome) -> Tensor:
    return outcome.result if outcome.auxiliary is None else outcome.result + outcome.auxiliary


@pytest.mark.parametrize("name", ["gemma3", "gpt2", "deepseek"])
def test_each_stage_has_a_cache_of_its_own(name: str) -> None:
    model, parts = whole(FAMILIES[name]).eval(), stages(FAMILIES[name])
    text, caches = tokens(), [KeyValueCache() for _ in parts]
    logits: list[Tensor] = []
    with torch.inference_mode():
        for piece in text.split((4, 1, 1, 3), dim=1):
            stream = piece
            for stage, cache in zip(parts, caches, strict=True):
                stream = stage.eval()(stream, cache=cache)
            logits.append(stream)
        expected = model(text)
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, rtol=1e-4, atol=1e-4)


def test_tokens_do_not_enter_in_the_middle() -> None:
    with refused(ValueError):
        stages({})[1](tokens())


def test_no_other_matrix_stands_in_for_a_missing_output() -> None:
    model = small_model()
    model.output = None
    with pytest.raises(AssertionError, match="no output matrix"):
        model(tokens())


def test_a_merged_matrix_is_not_divided_silently() -> None:
    """Half of its rows would pass for queries, keys and values of half the heads."""
    model = small_model(merge_qkv=True)
    attention = model.layers["0"].attention
    attention.query_key_value.register_forward_hook(lambda _m, _x, y: y.chunk(2, dim=-1)[0])
    with refused():
        model(tokens())
