"""Two ranks of FSDP2 draw and compute a sharded model as one does the whole."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from setpoint.model import initialize as initialization
from setpoint.model.attention.config import MLA
from setpoint.model.build import build_transformer
from setpoint.model.config import LayerNormConfig, MuP, RMSNormConfig
from setpoint.model.initialize import NormalInit, initialize
from setpoint.model.moe.config import MoE, SigmoidTopK

from ..support.ranks import run_on_ranks
from .small import VOCAB, small_config, small_model

WORLD = 2


# Between them they hold every kind of parameter.
SHAPES = (
    {},
    {
        "norm": LayerNormConfig(),
        "norm_placement": "both",
        "positions": "learned",
        "activation": "gelu",
        "ffn_bias": True,
        "qkv_bias": True,
        "merge_qkv": True,
        "tie_embeddings": True,
        "vocab_multiple_of": 8,
    },
    {
        "norm": RMSNormConfig(zero_centered=True),
        "qk_norm": True,
        "attention_pattern": ("sliding", "full"),
        "sliding_window": 4,
        "mup": MuP(base_dim=8),
        "moe": MoE(experts=4, every=2, router=SigmoidTopK(), shared_experts=1),
    },
    {"mla": MLA(kv_rank=6, rope_head_dim=4, nope_head_dim=4, value_head_dim=4)},
)


def fully_sharded(rank: int, tokens: torch.Tensor, changes: dict) -> None:
    whole = small_model(seed=3, **changes)
    with torch.device("meta"):
        model = build_transformer(small_config(**changes), vocab_size=VOCAB)
    for layer in model.layers.values():
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    initialize(model, 3)
    for name, parameter in model.named_parameters():
        expected = dict(whole.named_parameters())[name]
        # Of an odd number of rows the first rank has one more; of too few the last ones have none.
        parts = [*expected.chunk(WORLD), expected[:0]]
        assert torch.equal(parameter.to_local(), parts[rank]), name
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, dict(whole.named_buffers())[name]), name
    logits, expected_logits = model(tokens), whole(tokens)
    assert torch.equal(logits, expected_logits)
    logits.square().sum().backward()
    expected_logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        expected = dict(whole.named_parameters())[name].grad
        assert expected is not None and parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad.full_tensor(), expected, rtol=1e-4, atol=1e-4)


class Table(nn.Module):
    """A parameter of many blocks of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1001, 300))

    def initializers(self) -> dict[str, NormalInit]:
        return {"weight": NormalInit(0.5)}


def blocks(rank: int) -> None:
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
    mine = range(501) if rank == 0 else range(501, 1001)
    assert drawn == sorted({row // size for row in mine}), drawn
    assert len(drawn) in (2, 3)


def sharded_models_are_equal(_: Path) -> None:
    tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    for changes in SHAPES:
        fully_sharded(dist.get_rank(), tokens, changes)
    blocks(dist.get_rank())


def test_two_ranks_draw_their_own_shards_and_compute_the_same():
    """On the CPU, torch's own initialization gives every rank the same shard."""
    run_on_ranks(WORLD, sharded_models_are_equal)
