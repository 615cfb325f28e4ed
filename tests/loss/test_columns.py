"""Losses of logits of which each rank has a part of the vocabulary, against those of all."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from setpoint.loss.chunked import ChunkedCrossEntropyLoss
from setpoint.loss.cross_entropy import count_correct, count_correct_from_hidden
from setpoint.shapes.batch import IGNORE_INDEX
from setpoint.shapes.outcome import Projection, VocabularyPart
from setpoint.shapes.peers import Peers, sum_gradients

from ..support.ranks import run_on_ranks
from .small import OPTIONS, VOCAB, batch, chunked, head, plain, projection

WORLD = 4
PADDED = 5  # 16 rows of 11 tokens on 4 ranks: the third has 3 of its 4, and the last has none


def own_head(peers: Peers) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states and the output matrix, as all have them and as this rank has them."""
    hidden, matrix = head(padded=PADDED)
    part = peers.part(matrix.detach(), 0).clone().requires_grad_()
    return hidden, matrix, hidden.detach().clone().requires_grad_(), part


def losses_are_equal(peers: Peers) -> None:
    _, targets, weights = batch()
    for options in OPTIONS.values():
        for soft_cap in (None, 3.0):
            for gathers in (False, True) if soft_cap else (False,):
                hidden, matrix, own_hidden, own = own_head(peers)
                whole = projection(matrix, soft_cap, scale=0.7)
                part = VocabularyPart(peers, 4, gathers)
                to_logits = Projection(own, VOCAB, 0.7, soft_cap, part)
                expected = plain(**options)(whole.logits(hidden), targets, weights)
                theirs = torch.autograd.grad(expected.total, (hidden, matrix))
                for loss in (plain(**options), chunked(5, **options)):
                    loss.per_token = True
                    states = sum_gradients(own_hidden, peers)
                    if isinstance(loss, ChunkedCrossEntropyLoss):
                        found = loss.from_hidden(states, to_logits, targets, weights)
                    else:
                        logits = to_logits.logits(states)
                        assert logits.shape[-1] == (VOCAB if gathers else (4, 4, 3, 0)[peers.rank])
                        found = loss(logits, targets, weights, to_logits.columns)
                    close(found.total, expected.total)
                    close(found.nats, expected.nats)
                    assert found.per_token is not None
                    close(found.per_token.sum(), expected.nats)
                    ours = torch.autograd.grad(found.total, (own_hidden, own))
                    close(ours[0], theirs[0])
                    close(ours[1], peers.part(theirs[1], 0))


def torch_agrees(peers: Peers) -> None:
    """The oracle that is not ours; a logit of -inf, which some models mask tokens with, as well."""
    _, targets, _ = batch()
    hidden, matrix, _, own = own_head(peers)
    logits = projection(matrix).logits(hidden).detach().requires_grad_()
    mask = torch.zeros(VOCAB, dtype=torch.float64)
    mask[4:8] = -torch.inf  # all that the second rank has
    targets = targets.where((targets < 4) | (targets >= 8), 0)
    expected = F.cross_entropy((logits + mask).flatten(0, 1), targets.flatten(), reduction="sum")
    columns = Projection(own, VOCAB, part=VocabularyPart(peers, 4, gathers=False)).columns
    assert columns is not None
    here = slice(columns.first, columns.first + len(own))
    mine = logits.detach()[..., here].clone().requires_grad_()
    found = plain(z_loss=0.0)(mine + mask[here], targets, None, columns)
    close(found.total, expected)
    (theirs,) = torch.autograd.grad(expected, logits)
    (ours,) = torch.autograd.grad(found.total, mine)
    close(ours, theirs[..., here])


def accuracy_is_equal(peers: Peers) -> None:
    _, targets, _ = batch(rows=8)
    hidden, matrix = head(rows=8, padded=PADDED)
    # Equal logits on two ranks: the first token counts.
    with torch.no_grad():
        matrix[9], matrix[1] = matrix[2], matrix[5]
    whole = projection(matrix)
    right = count_correct(whole.logits(hidden), targets)
    assert right > 0
    own = Projection(peers.part(matrix, 0), VOCAB, part=VocabularyPart(peers, 4, gathers=False))
    assert count_correct(own.logits(hidden), targets, own.columns) == right
    assert count_correct_from_hidden(hidden, own, targets, chunk=6) == right


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def ranks_divide_the_vocabulary(_: Path) -> None:
    world = dist.group.WORLD
    assert world is not None
    peers = Peers(world.group_name, dist.get_rank(), WORLD)
    losses_are_equal(peers)
    torch_agrees(peers)
    accuracy_is_equal(peers)


def test_losses_and_gradients_of_a_divided_vocabulary():
    run_on_ranks(WORLD, ranks_divide_the_vocabulary)


BATCH, LENGTH, DIM, CLASSES = 3, 17, 8, 5


def problem(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, an output matrix, and targets, of which a fifth do not count."""
    made = torch.Generator().manual_seed(1)
    hidden = torch.randn(BATCH, LENGTH, DIM, generator=made, dtype=torch.float64)
    weight = torch.randn(CLASSES + 3, DIM, generator=made, dtype=torch.float64)
    targets = torch.randint(CLASSES, (BATCH, LENGTH), generator=made)
    targets[torch.rand(BATCH, LENGTH, generator=made) < 0.2] = IGNORE_INDEX
    return hidden.to(dtype), weight.to(dtype), targets


def counted(logits: np.ndarray, targets: torch.Tensor) -> int:
    rows, wanted = logits.reshape(-1, CLASSES), targets.flatten().tolist()
    return sum(int(np.argmax(row)) == t for row, t in zip(rows, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("chunk", [1, 7, 1024])
def test_from_hidden_states_as_from_logits(dtype: torch.dtype, chunk: int) -> None:
    hidden, weight, targets = problem(dtype)
    projection = Projection(weight, CLASSES, scale=0.5, soft_cap=3.0)
    logits = (hidden @ weight[:CLASSES].T).double().numpy()
    expected = counted(logits, targets)  # neither scale nor cap changes which one is highest
    assert 0 < expected < (targets != IGNORE_INDEX).sum()
    assert int(count_correct_from_hidden(hidden, projection, targets, chunk)) == expected
    assert int(count_correct(projection.logits(hidden), targets)) == expected


def test_not_all_logits_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = problem(torch.float32)
    seen: list[tuple[int, torch.dtype]] = []

    def finish(self: Projection, logits: torch.Tensor, real=Projection.finish) -> torch.Tensor:
        seen.append((len(logits), logits.dtype))
        return real(self, logits)

    monkeypatch.setattr(Projection, "finish", finish)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        count_correct_from_hidden(hidden, Projection(weight, CLASSES), targets, chunk=20)
    assert seen == [(20, torch.bfloat16), (20, torch.bfloat16), (11, torch.bfloat16)]


def test_of_equal_logits_the_first_counts() -> None:
    logits = torch.zeros(1, 3, CLASSES)
    assert int(count_correct(logits, torch.tensor([[0, 1, IGNORE_INDEX]]))) == 1
