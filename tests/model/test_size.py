import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from setpoint.model.count import count_parameters
from setpoint.model.size import estimate_size

from .small import VOCAB, small_config

SHAPES = [
    {},
    {"tie_embeddings": True},
    {"layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16},
    {"layers": 3, "dim": 48, "kv_heads": 6, "ffn_dim": 7},
]


@pytest.mark.parametrize("changes", SHAPES)
def test_parameters_equal_those_of_the_module(changes):
    config = small_config(**changes)
    model = config.build(vocab_size=VOCAB)
    size = estimate_size(config, vocab_size=VOCAB, sequence_length=8)
    assert size.parameters == count_parameters(model)

    def counted(*parts: str) -> int:
        return sum(
            parameter.numel()
            for name, parameter in model.named_parameters()
            if any(part in name.split(".") for part in parts)
        )

    assert size.attention == counted("attention")
    assert size.feed_forward == counted("feed_forward")
    assert size.norm == counted("norm", "attention_norm", "feed_forward_norm")
    assert size.embedding == counted("embedding")


@pytest.mark.parametrize("changes", SHAPES)
def test_flops_equal_those_torch_counts(changes):
    config = small_config(**changes)
    model = config.build(vocab_size=VOCAB)
    tokens = torch.zeros(3, 16, dtype=torch.int64)
    # The composed attention, because torch counts nothing for the fused one on the CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    size = estimate_size(config, vocab_size=VOCAB, sequence_length=16)
    assert counter.get_total_flops() == size.flops_per_token * tokens.numel()


def test_count_takes_shared_once():
    layer = torch.nn.Linear(3, 4)
    module = torch.nn.Sequential(layer, layer)
    assert count_parameters(module) == 16
