"""Run by test_sharding.py in a process of its own: two ranks check the model taken apart.

The ranks are forked from a parent that has imported torch and run nothing, which is faster than
starting two interpreters.
"""

import sys

import torch
from torch.distributed.fsdp import fully_shard

from setpoint.model.attention.config import MLA
from setpoint.model.config import LayerNormConfig, MuP, RMSNormConfig
from setpoint.model.initialize import initialize
from setpoint.model.moe.config import MoE, SigmoidTopK
from setpoint.model.transformer import Transformer
from setpoint.shapes.outcome import Projection

from ..support.ranks import fork_group
from .sharded_objective import objectives
from .sharded_stages import stages
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
        model = Transformer(small_config(**changes), vocab_size=VOCAB)
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


def with_a_head(rank: int, tokens: torch.Tensor, changes: dict) -> None:
    """The head is called while the output matrix is gathered."""
    whole = small_model(seed=3, **changes)
    model = small_model(seed=3, **changes)
    for layer in model.layers.values():
        fully_shard(layer)
    fully_shard(model)

    def head(hidden: torch.Tensor, projection: Projection) -> torch.Tensor:
        assert type(projection.weight.data) is torch.Tensor
        return projection.logits(hidden).logsumexp(-1).sum()

    outcome, expected = model(tokens, head=head), whole(tokens, head=head)
    torch.testing.assert_close(outcome.result, expected.result)
    for one in (outcome, expected):
        (one.result if one.auxiliary is None else one.result + one.auxiliary).backward()
    weight = "embedding.weight"
    grad = model.get_parameter(weight).grad.full_tensor()
    torch.testing.assert_close(grad, whole.get_parameter(weight).grad, rtol=1e-4, atol=1e-4)


def one_rank(rank: int, store: str) -> None:
    tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    for changes in SHAPES:
        fully_sharded(rank, tokens, changes)
        with_a_head(rank, tokens, changes)
    objectives(rank, WORLD)
    stages(rank, WORLD)


if __name__ == "__main__":
    sys.exit(fork_group(one_rank, WORLD))
