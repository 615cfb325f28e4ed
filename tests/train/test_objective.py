"""The mean over the global batch, whatever it is computed in, and what does not fit together."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.config import ConfigError, RunError, SetpointError, resolve
from setpoint.loss.config import CrossEntropy
from setpoint.loss.cross_entropy import LossOutput, Weigher
from setpoint.shapes.batch import IGNORE_INDEX, Batch, StepBatch, total_count
from setpoint.shapes.outcome import Outcome, Projection, Routing
from setpoint.train.build.components import Components, build_components
from setpoint.train.evaluation.scores import evaluate
from setpoint.train.objective import Objective

from ..support.snapshots import compare, refused
from ..support.tensors import make_batch
from .small import loop_of, small_job

ROWS, LENGTH, VOCAB = 8, 16, 257
SPACE = 32  # the first byte of the synthetic text


def rows_of(weighted: bool, seed: int = 0) -> Batch:
    """Eight rows with uneven numbers of valid targets, one of them without any."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(SPACE, SPACE + 8, (ROWS, LENGTH), generator=generator)
    targets = torch.randint(SPACE, SPACE + 8, (ROWS, LENGTH), generator=generator)
    for row in range(ROWS):
        targets[row, LENGTH - 2 * row :] = IGNORE_INDEX
    targets[3] = IGNORE_INDEX
    weights = torch.randint(0, 5, (ROWS, LENGTH), generator=generator) / 2
    return make_batch(inputs, targets, weights=weights if weighted else None)


class Rows:
    """A feed whose only step are the rows of one batch, a few at a time."""

    epoch = 0.0
    sampler = SimpleNamespace(is_dealt=False)

    def __init__(self, components: Components, batch: Batch, size: int) -> None:
        self.components, self.batches = components, tuple(self.split(batch, size))

    def split(self, batch: Batch, size: int) -> Iterator[Batch]:
        for first in range(0, ROWS, size):
            at = slice(first, first + size)
            weights = None if batch.weights is None else batch.weights[at]
            yield make_batch(batch.inputs[at], batch.targets[at], weights=weights)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def take(self) -> StepBatch:
        counts = [self.components.objective.count(batch) for batch in self.batches]
        return StepBatch(self.batches, counts, total_count(counts))


def one_update(
    folder: Path, batch: Batch, micro: int, *flags: str
) -> tuple[tuple[float, float, int], list[Tensor]]:
    """An update of a small model in fp64: its figures, and the gradients that it used."""
    job = small_job(
        folder, f"batch.micro_size={micro}", f"batch.accumulation={ROWS // micro}",
        "model.dropout=0", "optimizer.clip_norm=null", *flags,
    )  # fmt: skip
    components = build_components(job)
    components.model.to(torch.float64)
    components.feed = Rows(components, batch, micro)  # pyright: ignore[reportAttributeAccessIssue]
    kept: list[Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        kept.extend(p.grad.clone() for p in components.model.parameters() if p.grad is not None)

    components.optimizer.register_step_pre_hook(keep)
    result = loop_of(job, components=components).step()
    return (result.loss, result.cross_entropy, result.tokens), kept


def test_the_mean_is_over_the_weights_of_the_valid_targets(tmp_path: Path) -> None:
    """By hand: sum of w CE over sum of w, and the cross-entropy of all that weigh anything.

    However it is divided, also where a micro-batch has no target that counts.
    """
    batch = rows_of(weighted=True)
    flags = ("loss.ignore_index=33", "loss.token_weights={34: 0.5, 35: 0}", "model.dropout=0")
    (loss, nats, tokens), gradients = one_update(tmp_path, batch, 1, *flags)
    _, of_one_batch = one_update(tmp_path, batch, ROWS, *flags)
    torch.testing.assert_close(gradients, of_one_batch, rtol=1e-9, atol=1e-14)
    model = build_components(small_job(tmp_path, *flags)).model.double()
    each = F.cross_entropy(
        model(batch.inputs).flatten(0, 1), batch.targets.flatten(), reduction="none"
    ).detach()
    assert batch.weights is not None
    targets, weights = batch.targets.flatten(), batch.weights.flatten().clone()
    weights[(targets == 33) | (targets == 35) | (targets == IGNORE_INDEX)] = 0
    weights[targets == 34] *= 0.5
    assert loss == pytest.approx(float((each * weights).sum() / weights.sum()), rel=1e-6)
    assert nats == pytest.approx(float(each[weights > 0].mean()), rel=1e-6)
    assert tokens == batch.inputs.numel() > int((weights > 0).sum())


class Told(nn.Module):
    """A model that adds a term of its own, and says how it routed."""

    supports_head = True

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(VOCAB, 4, dtype=torch.float64))
        self.matrix = nn.Parameter(torch.ones(VOCAB, 4, dtype=torch.float64))

    def forward(self, tokens: Tensor, head: Any) -> Outcome:
        # A mean over the tokens: of their ids, times a parameter that is zero so far.
        extra = (tokens.double() * (1 + self.table.sum())).mean()
        counts = torch.ones(2, 3) * tokens.numel()
        means = [torch.tensor(float(tokens.double().mean()) * n) for n in (1, 2, 3)]
        routing = Routing(counts, torch.ones(2), *means)
        return Outcome(head(self.table[tokens], Projection(self.matrix, VOCAB)), extra, routing)


def test_what_the_model_adds_is_a_mean_over_the_global_batch(tmp_path: Path) -> None:
    """All tokens that the model reads weigh the same, whether their targets count or not."""
    batch = rows_of(weighted=False)
    job = small_job(tmp_path, "batch.micro_size=2", "batch.accumulation=4")
    components = build_components(job)
    components.model = Told()
    components.objective = Objective(components.model, resolve(CrossEntropy()).build())
    components.optimizer = torch.optim.SGD(components.model.parameters(), lr=0.0)
    components.feed = Rows(components, batch, 2)  # pyright: ignore[reportAttributeAccessIssue]
    loop = loop_of(job, components=components)
    result = loop.step()
    valid = (batch.targets != IGNORE_INDEX).sum(1).view(4, 2).sum(1)
    assert len(valid.unique()) > 1
    expected = float(batch.inputs.double().mean())
    assert result.cross_entropy == pytest.approx(float(torch.tensor(VOCAB).log()), rel=1e-6)
    assert result.loss == pytest.approx(result.cross_entropy + expected, rel=1e-6)
    assert result.routing is not None
    assert result.routing.counts.tolist() == [[ROWS * LENGTH] * 3] * 2
    assert result.routing.dropped.tolist() == [4, 4]
    found = [float(mean) for mean in result.routing[2:]]
    assert found == pytest.approx([expected, 2 * expected, 3 * expected], rel=1e-6)


class Own:
    """A loss of a user's own, which takes no weights."""

    def __call__(self, logits: Tensor, targets: Tensor) -> LossOutput:
        total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return LossOutput(total, total.detach())


class NeedsHidden:
    """A loss of a user's own, which wants hidden states."""

    weigh = Weigher()

    def from_hidden(self, hidden: Tensor, projection: Projection, targets: Tensor) -> LossOutput:
        return Own()(projection.logits(hidden), targets)


class Logits(nn.Module):
    """A model of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)


def test_a_model_and_a_loss_of_ones_own() -> None:
    batch = rows_of(weighted=False)
    model = Logits()
    outcome = Objective(model, Own())(batch)
    expected = Own()(model(batch.inputs), batch.targets).total
    assert outcome.result.total.item() == expected.item()
    assert outcome.auxiliary is outcome.routing is None
    with_head = Objective(Told(), NeedsHidden())(batch)
    assert with_head.result.total.item() == pytest.approx(
        batch.target_tokens * float(torch.tensor(VOCAB).log())
    )


def told(action: Any) -> str:
    with pytest.raises((SetpointError, ConfigError, RunError)) as caught:
        action()
    return str(caught.value).partition("\n    from file")[0]


def test_what_does_not_fit_together(tmp_path: Path) -> None:
    weighted = rows_of(weighted=True)
    assert weighted.weights is not None
    negative = replace(weighted, weights=weighted.weights - 1)
    own = Objective(Logits(), Own())
    ours = Objective(Logits(), resolve(CrossEntropy()).build())
    nothing = make_batch(weighted.inputs, torch.full_like(weighted.targets, 33))
    found = {
        "a loss that needs hidden states": lambda: Objective(Logits(), NeedsHidden()),
        "a loss without weights": lambda: own.count(weighted),
        "negative weights": lambda: ours.count(negative),
        "a token that is not there": lambda: build_components(
            small_job(tmp_path, "loss.ignore_index=257")
        ),
        "weights of such": lambda: build_components(
            small_job(tmp_path, "loss.token_weights={300: 0.5}")
        ),
        "nothing counts": lambda: one_update(tmp_path, nothing, 4, "loss.ignore_index=33"),
        "nothing to judge on": lambda: evaluate_nothing(tmp_path),
    }
    text = "\n\n".join(f"{name}:\n{told(action)}" for name, action in found.items())
    compare("train/objective", text)


def evaluate_nothing(folder: Path) -> None:
    weights = ", ".join(f"{token}: 0" for token in (*range(SPACE, SPACE + 8), 256))
    job = small_job(folder, f"loss.token_weights={{{weights}}}")
    evaluate(job, build_components(job))


class Aware(nn.Module):
    """A model that gives logits, and is called with the places of its tokens."""

    takes_documents = True

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(VOCAB, VOCAB))
        self.given: dict[str, Tensor] = {}

    def forward(self, tokens: Tensor, **given: Tensor) -> Tensor:
        self.given = given
        return self.table[tokens]


def test_a_model_without_a_head_may_take_documents() -> None:
    plain = rows_of(weighted=False)
    places = torch.zeros_like(plain.inputs)
    batch = replace(plain, positions=places, documents=places + 1)
    model = Aware()
    Objective(model, resolve(CrossEntropy()).build()).sums(batch)
    assert model.given == {"positions": batch.positions, "documents": batch.documents}
    model.takes_documents = False
    with refused():
        Objective(model, resolve(CrossEntropy()).build()).sums(batch)
