"""The formulas of operations, against what torch counts and against counted masks."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from setpoint.model.attention.config import MLA
from setpoint.model.config import TransformerConfig
from setpoint.model.layers import count_parameters
from setpoint.model.moe.config import MoE
from setpoint.model.parameters import (
    FORMULAS,
    all_parameters,
    attended,
    count_parameters_of,
    pair_size,
    training_flops,
    window_of,
)

from .small import VOCAB, small_config

LENGTH = 16
LATENT = {"kv_rank": 9, "rope_head_dim": 4, "nope_head_dim": 6, "value_head_dim": 5}
SHAPES = [
    {},
    {"tie_embeddings": True, "kv_heads": 1},
    {"layers": 5, "attention_pattern": ("sliding", "sliding", "full"), "sliding_window": 5},
    {"layers": 2, "attention_pattern": ("sliding",), "sliding_window": 40},
    {"mla": MLA(**LATENT, query_rank=7)},
    {"layers": 4, "moe": MoE(experts=4, top_k=1, expert_dim=12, every=2, packed=False)},
]


def flops(config: TransformerConfig, formula: str, length: int = LENGTH) -> float:
    return training_flops(config, formula, vocab_size=VOCAB, sequence_length=length)


def met(config: TransformerConfig, length: int) -> int:
    """Pairs of a position and one that it sees, counted in masks, over all layers."""
    total = 0
    for layer in range(config.layers):
        kind = config.attention_pattern[layer % len(config.attention_pattern)]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        if kind == "sliding":
            assert config.sliding_window is not None
            mask = mask.triu(1 - config.sliding_window)
        total += int(mask.sum())
    return total


@pytest.mark.parametrize("changes", SHAPES)
@pytest.mark.parametrize("length", [4, 16, 17])
def test_causal_attention_counts_what_masks_leave(changes, length):
    config = small_config(**changes)
    pairs = met(config, length)
    assert attended(config, length, is_causal=True) == pair_size(config) * pairs
    counts = count_parameters_of(config, VOCAB)
    expected = 6 * counts.in_products + 6 * pair_size(config) * pairs / length
    assert flops(config, "palm_causal", length) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("changes", SHAPES)
def test_products_are_those_torch_counts(changes):
    """Those of palm without windows in full, and of every model the products with parameters."""
    config = small_config(**changes)
    model = config.build(vocab_size=VOCAB)
    tokens = torch.zeros(3, LENGTH, dtype=torch.int64)
    # The composed attention, because torch counts nothing for the fused one on the CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    attention = {"bmm": 0, "baddbmm": 0}
    for operator, count in counter.get_flop_counts()["Global"].items():
        name = str(operator).removeprefix("aten.")
        if name in attention:
            attention[name] += count
    counts = count_parameters_of(config, VOCAB)
    products = counter.get_total_flops() - sum(attention.values())
    assert products == 6 * counts.in_products * tokens.numel()
    if config.sliding_window is None:
        assert flops(config, "palm") * tokens.numel() == counter.get_total_flops()
    # Without a window the mask leaves (S + 1) / 2 of S positions.
    full = small_config(
        **{k: v for k, v in changes.items() if k != "sliding_window"}
        | ({"attention_pattern": ("full",)} if "sliding_window" in changes else {})
    )
    whole = flops(full, "palm") - 6 * counts.in_products
    halved = flops(full, "palm_causal") - 6 * counts.in_products
    assert halved / whole == pytest.approx((LENGTH + 1) / (2 * LENGTH), rel=1e-12)


@pytest.mark.parametrize("changes", SHAPES)
def test_all_parameters_counts_those_of_the_module(changes):
    config = small_config(**changes)
    count = count_parameters(config.build(vocab_size=VOCAB))
    heads = config.layers * pair_size(config)
    assert flops(config, "all_parameters") == 6 * count + 6 * heads * LENGTH
    assert all_parameters(count, heads, LENGTH) == flops(config, "all_parameters")
    if config.mla is None:
        # As most write it: 12 L H Q S.
        twelve = 12 * config.layers * config.heads * config.head_dim * LENGTH
        assert flops(config, "all_parameters") == 6 * count + twelve


def test_a_published_figure():
    """Llama 3 8B at 8,192 tokens: 6 * 7,504,658,432 in products, and 12 * 32 * 4,096 * 8,192."""
    config = small_config(dim=4096, layers=32, heads=32, kv_heads=8, head_dim=128, ffn_dim=14336)
    found = training_flops(config, "palm", vocab_size=128256, sequence_length=8192)
    assert found == 6 * 7_504_658_432 + 12 * 32 * 4096 * 8192


def test_windows_bound_what_is_met():
    config = small_config(layers=3, attention_pattern=("sliding",), sliding_window=8)
    assert window_of(config, 4) == 4
    assert window_of(config, 64) == 8
    assert attended(config, 64) == pair_size(config) * 64 * 3 * 8
    assert window_of(small_config(), 64) == 64


def test_each_formula_says_what_it_is():
    assert set(FORMULAS) == {"palm", "palm_causal", "all_parameters"}
    for formula in FORMULAS.values():
        assert formula.text.startswith("6 ")
        assert "S positions" in formula.meaning
