"""Run by test_sharding.py in a process of its own: what ranks start with, and what they drop.

The ranks are forked from a parent that has imported torch and run nothing.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from setpoint.model import initialize as initialization
from setpoint.model.initialize import NormalInit, initialize
from setpoint.model.transformer import Transformer
from setpoint.parallel.determinism import seed_everything

from ..support.ranks import fork_group
from .small import VOCAB, small_config, small_model

WORLD = 2


def gathered(mine: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of all ranks, which are of one shape."""
    parts = [torch.empty_like(mine) for _ in range(WORLD)]
    dist.all_gather(parts, mine.contiguous())
    return parts


def weights() -> None:
    """Shards that began on the meta device are those of the whole model, and differ."""
    # With an even number of rows everywhere, so that shards are of one size.
    whole = small_model(seed=3, vocab_multiple_of=2)
    with torch.device("meta"):
        model = Transformer(small_config(vocab_multiple_of=2), vocab_size=VOCAB)
    for layer in model.layers.values():
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    initialize(model, 3)
    drawn = 0
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor), name
        assert torch.equal(parameter.full_tensor(), whole.get_parameter(name)), name
        if parameter.full_tensor().std() > 0:  # and is not a norm, which starts at one
            first, second = gathered(parameter.to_local().detach())
            assert not torch.equal(first, second), name
            drawn += 1
    assert drawn > 10


class Table(nn.Module):
    """A parameter of many blocks of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1001, 300))

    def initializers(self) -> dict[str, NormalInit]:
        return {"weight": NormalInit(0.5)}


def blocks() -> None:
    """A rank draws the blocks of its own rows, and no others."""
    drawn: list[int] = []
    make = initialization.block_generator

    def noted(seed: int, name: str, block: int) -> torch.Generator:
        drawn.append(block)
        return make(seed, name, block)

    whole, sharded = Table(), Table()
    initialize(whole, 3)
    fully_shard(sharded)
    initialization.block_generator = noted
    initialize(sharded, 3)
    initialization.block_generator = make
    assert isinstance(sharded.weight, DTensor)
    assert torch.equal(sharded.weight.full_tensor(), whole.weight)
    size = initialization.block_rows((1001, 300))
    mine = range(501) if dist.get_rank() == 0 else range(501, 1001)
    assert drawn == sorted({row // size for row in mine}), drawn
    assert len(drawn) in (2, 3)


def masks(rank: int) -> None:
    """Dropout drops other elements on each rank, and the same ones in the next run."""
    found: list[torch.Tensor] = []
    for _ in range(2):
        seed_everything(1234, rank)
        found.append(F.dropout(torch.ones(256)))
    assert torch.equal(*found)
    first, second = gathered(found[0])
    assert not torch.equal(first, second)
    # Nor are they dropped where a run with the next seed would drop them.
    seed_everything(1235, 0)
    assert not any(torch.equal(F.dropout(torch.ones(256)), mask) for mask in (first, second))


def one_rank(rank: int, store: str) -> None:
    """What a rank does."""
    weights()
    blocks()
    masks(rank)


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, WORLD))
