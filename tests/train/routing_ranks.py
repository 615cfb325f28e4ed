"""Run by test_routing.py in a process of its own: two ranks balance the load as one would.

The ranks are forked from a parent that has imported torch and run nothing, which is faster than
starting two interpreters.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from setpoint.config import resolve
from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import initialize
from setpoint.model.moe.config import MoE, SigmoidTopK
from setpoint.model.moe.layer import update_biases
from setpoint.model.transformer import Transformer
from setpoint.parallel.config import Parallel
from setpoint.parallel.world import world_of
from setpoint.shapes.batch import BySource, Count, StepBatch
from setpoint.shapes.outcome import Outcome
from setpoint.train.step_sync import count_over_ranks

from ..support.ranks import fork

WORLD, VOCAB = 2, 37


def model_of(seed: int) -> Transformer:
    """A model of two layers, of which the second has experts on both ranks."""
    fields = {"dim": 16, "layers": 2, "heads": 2, "max_sequence_length": 16, "init_std": 0.3}
    moe = MoE(experts=8, expert_dim=16, router=SigmoidTopK(bias_rate=0.125))
    with torch.device("meta"):
        model = Transformer(resolve(TransformerConfig(**fields, moe=moe)), vocab_size=VOCAB)
    return model.train() if seed < 0 else started(model, seed)


def started(model: Transformer, seed: int) -> Transformer:
    """The model with its first values."""
    model.to_empty(device="cpu")
    initialize(model, seed)
    return model


def step(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """Forward, backward and one step of the biases; the counts."""
    outcome = model(tokens, head=lambda hidden, projection: projection.logits(hidden))
    assert isinstance(outcome, Outcome) and outcome.routing is not None
    (outcome.result.square().mean() + outcome.auxiliary).backward()
    world = world_of(resolve(Parallel(device="cpu")))
    numbers = outcome.routing.flat()
    world.sum(numbers)
    counts = outcome.routing.from_flat(numbers).counts
    update_biases(model, counts, 0.0)
    return counts


def biases(model: Transformer) -> torch.Tensor:
    """Of all layers."""
    return torch.stack([layer.feed_forward.router.bias for layer in model.layers.values()])


def one_rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    tokens = torch.randint(VOCAB, (4, 9), generator=torch.Generator().manual_seed(0))
    # One process with all tokens, before there is a group of processes.
    alone = model_of(3)
    counts = step(alone, tokens)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    mine = tokens.chunk(WORLD)[rank]
    whole, sharded = model_of(3), model_of(-1)
    for layer in sharded.layers.values():
        fully_shard(layer)
    fully_shard(sharded)
    started(sharded, 3)
    for model in (whole, sharded):
        assert torch.equal(step(model, mine), counts)
        assert torch.equal(biases(model), biases(alone))
    assert biases(alone).abs().sum() > 0
    world = world_of(resolve(Parallel(device="cpu")))
    assert (world.rank, world.size, world.is_main) == (rank, WORLD, rank == 0)
    assert world.any(rank == 1) and not world.any(False)
    batch = StepBatch((), (), Count(2**40 + rank, 3, 0.5), BySource((rank, 3), (5, 2**40)))
    assert count_over_ranks(batch, world)[:2] == (
        Count(2**41 + 1, 6, 1.0),
        BySource((1, 6), (10, 2**41)),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork(one_rank, WORLD))
