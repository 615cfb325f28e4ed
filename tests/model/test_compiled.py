"""The model in graphs: no break in a layer, none in the whole, and the same numbers."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setpoint.model.transformer import Transformer
from setpoint.shapes.outcome import Projection

from ..support.cases import few
from .families import FAMILIES, sparse
from .small import VOCAB, small_model

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

# Whose two layers are not alike.
MIXED = ("gemma3", "deepseek", "llama4")


def head(hidden: Tensor, projection: Projection) -> Tensor:
    return projection.logits(hidden).logsumexp(-1).sum()


def same(model: Transformer, compiled: nn.Module | Transformer, length: int = 9) -> None:
    """Value, gradients and routing of one module after the other."""
    tokens = torch.randint(VOCAB, (2, length), generator=torch.Generator().manual_seed(0))
    found: list[Any] = []
    for one in (model, compiled):
        one.zero_grad()
        outcome = one(tokens, head=head)
        total = outcome.result
        (total if outcome.auxiliary is None else total + outcome.auxiliary).backward()
        counts = None if outcome.routing is None else outcome.routing.counts
        found.append((outcome.result, counts, [p.grad.clone() for p in one.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


# The backend `eager` shows what is captured, `aot_eager` also how its derivatives are.
BACKENDS = ("eager", "aot_eager")


@pytest.mark.parametrize(
    ("backend", "name"),
    few(
        product(BACKENDS, FAMILIES),
        [("aot_eager", "qwen3"), ("eager", "gemma3"), ("eager", "deepseek")],
    ),
)
def test_each_layer_is_one_graph(backend: str, name: str) -> None:
    """Layers with experts too: rows are sorted by tensor operations, of shapes known before."""
    layers = 2 if name in MIXED else 1
    model, compiled = (small_model(**FAMILIES[name], layers=layers) for _ in range(2))
    torch._dynamo.reset()
    for layer in compiled.layers.values():
        layer.compile(backend=backend, fullgraph=True)
    same(model, compiled)


@pytest.mark.parametrize(
    ("backend", "name"), few(product(BACKENDS, FAMILIES), [("eager", "qwen3_moe")])
)
def test_the_whole_is_one_graph(backend: str, name: str) -> None:
    layers = 2 if name in MIXED else 1
    model, compiled = (small_model(**FAMILIES[name], layers=layers) for _ in range(2))
    torch._dynamo.reset()
    same(model, torch.compile(compiled, backend=backend, fullgraph=True))


CAPACITY, UNPACKED = {"capacity_factor": 0.8}, {"packed": False}


@pytest.mark.parametrize("change", few((CAPACITY, UNPACKED), [CAPACITY]), ids=str)
def test_rows_that_only_the_data_counts_break_graphs_and_no_number(change: dict[str, Any]) -> None:
    model, compiled = (small_model(**sparse(**change), layers=1) for _ in range(2))
    torch._dynamo.reset()
    compiled.layers["0"].compile(backend="aot_eager")
    same(model, compiled)


def test_another_length_is_computed_right() -> None:
    model, compiled = small_model(layers=1), small_model(layers=1)
    torch._dynamo.reset()
    compiled.layers["0"].compile(backend="eager", fullgraph=True)
    for length in (9, 12):
        same(model, compiled, length)
