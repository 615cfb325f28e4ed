"""Models against the formulas of the papers, which share nothing with our code.

`plain_model.py` is the whole model in numpy; losses, routing and muP are judged by their
definitions, through the loop that trains.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import setpoint.presets  # noqa: F401 - registers them
from setpoint.config import resolve
from setpoint.infer.generation import Sampling, sample
from setpoint.model.attention.config import MLA, LinearScaling, Llama3Scaling, YarnScaling
from setpoint.model.attention.key_value_cache import KeyValueCache
from setpoint.model.config import LayerNormConfig, MuP, RMSNormConfig, TransformerConfig
from setpoint.model.initialize import initialize
from setpoint.model.moe.config import MoE, SigmoidTopK, SoftmaxTopK

from . import plain_model

VOCAB, LENGTH = 23, 13
PATTERN = {"attention_pattern": ("sliding", "full", "sliding"), "sliding_window": 3}
LATENT = MLA(kv_rank=7, query_rank=9, rope_head_dim=6, nope_head_dim=3, value_head_dim=5)
LLAMA3 = Llama3Scaling(factor=4.0, original_length=16, high_frequency_factor=3.0)
YARN = YarnScaling(factor=4.0, original_length=16, beta_fast=4.0)
YARN_EXACT = YarnScaling(
    factor=3.0, original_length=16, beta_fast=2.0, beta_slow=0.5, truncate=False
)
SOFT = SoftmaxTopK(normalize=False)
GROUPED = MoE(experts=8, top_k=2, groups=2, router=SigmoidTopK(), route_scale=2.5, expert_dim=9)
MIXED = MoE(experts=6, top_k=3, every=2, router=SOFT, shared_experts=2, expert_dim=8)
ALL = MoE(experts=4, top_k=4, router=SigmoidTopK(normalize=False), first_dense=1, expert_dim=8)
RELU = MoE(experts=4, packed=True, implementation="loop")
BOTH = {"norm": RMSNormConfig(zero_centered=True), "norm_placement": "both", "norm_eps": 1e-2}
LAYER = {"norm": LayerNormConfig(), "activation": "gelu_tanh", "positions": "learned"}

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"kv_heads": 1, "head_dim": 10, "rope_scaling": LLAMA3, "rope_base": 50.0},
    "yarn": {"rope_scaling": YARN, "qk_norm": True, "tie_embeddings": True, "kv_heads": 2},
    "yarn, not rounded": {"rope_scaling": YARN_EXACT, "merge_qkv": True, "qkv_bias": True},
    "gemma": {**PATTERN, **BOTH, "attention_soft_cap": 0.7, "logit_soft_cap": 1.3,
              "activation": "geglu_tanh", "rope_base_sliding": 30.0, "attention_scale": 0.9,
              "rope_scaling": LinearScaling(factor=3.0), "embedding_scale": 2.0},
    "window of one": {"attention_pattern": ("sliding",), "sliding_window": 1, "layers": 1},
    "gpt": {**LAYER, "qkv_bias": True, "attention_output_bias": True, "ffn_bias": True},
    "post norms": {"norm": LayerNormConfig(bias=False), "norm_placement": "post",
                   "activation": "geglu", "positions": "none", "residual_scale": 0.5,
                   "logit_scale": 2.0},
    "latent": {"mla": LATENT, **PATTERN, "rope_scaling": YARN, "activation": "relu_squared"},
    "grouped experts": {"moe": GROUPED, "activation": "reglu"},
    "shared experts": {"moe": MIXED, "activation": "gelu"},
    "all experts": {"moe": ALL, "qk_norm": True, "mla": None},
    "relu experts": {"moe": RELU, "activation": "relu"},
    "mup": {"mup": MuP(base_dim=6, base_head_dim=4), "tie_embeddings": True},
}  # fmt: skip


def made(dtype: torch.dtype = torch.float64, **fields: Any) -> Any:
    """A model whose weights, norms and biases are all far from their start."""
    own = {"dim": 24, "layers": 3, "heads": 4, "max_sequence_length": 32, "init_std": 0.3}
    config = resolve(TransformerConfig(**{**own, **fields}))
    model = config.build(vocab_size=VOCAB)
    initialize(model, 1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        buffers = [each for name, each in model.named_buffers() if name.endswith("router.bias")]
        for tensor in [*model.parameters(), *buffers]:
            tensor.add_(0.2 * torch.randn(tensor.shape, generator=generator))
    return model.to(dtype)


def plain_logits(model: Any, tokens: Tensor) -> Any:
    state = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    return np.stack([plain_model.logits(model.config, state, row.tolist()) for row in tokens])


@pytest.mark.parametrize("name", MODELS)
def test_the_whole_model_is_what_the_papers_say(name: str) -> None:
    """Logits, logits piece by piece from a cache, and the derivative in a random direction."""
    model = made(**MODELS[name])
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(VOCAB, (2, LENGTH), generator=generator)
    expected = plain_logits(model, tokens)
    size = abs(expected).max()
    logits = model(tokens)
    # Rotations are rounded to fp32, and all else is fp64.
    assert abs(logits.detach().numpy() - expected).max() < 1e-5 * size
    model.eval()
    cache, ends = KeyValueCache(), (4, 5, 6, 7, LENGTH)
    with torch.no_grad():
        pieces = [
            model(tokens[:, a:b], cache=cache) for a, b in zip((0, *ends), ends, strict=False)
        ]
    assert abs(torch.cat(pieces, dim=1).numpy() - expected).max() < 1e-5 * size

    pull = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
    (logits * pull).sum().backward()
    parameters = dict(model.named_parameters())
    ways = {
        key: torch.randn(each.shape, generator=generator, dtype=torch.float64)
        for key, each in parameters.items()
    }
    slope = sum(float((parameters[key].grad * way).sum()) for key, way in ways.items())
    values, step = [], 1e-7
    for by in (step, -2 * step):
        with torch.no_grad():
            for key, way in ways.items():
                parameters[key].add_(by * way)
        values.append(float((plain_logits(model, tokens) * pull.numpy()).sum()))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-3)


def test_mup_is_table_8() -> None:
    """Tensor Programs V, table 8, for Adam: what width does to start, rate and logits."""
    wide, narrow = (
        resolve(TransformerConfig(dim=dim, heads=dim // 8, layers=2, max_sequence_length=8,
                            init_std=0.02, mup=MuP(base_dim=32), ffn_bias=True, qkv_bias=True,
                            residual_init="plain", moe=MoE(experts=4, every=2)))
        for dim in (256, 32)
    )  # fmt: skip
    model, base = (config.build(vocab_size=4096) for config in (wide, narrow))
    for each in (model, base):
        initialize(each, 0)
    ratio = 32 / 256
    rates = model.learning_rate_multipliers()
    own = dict(base.named_parameters())
    for name, parameter in model.named_parameters():
        start, own_start = (each.detach().std() for each in (parameter, own[name]))
        # What maps width to width has both axes larger; input weights, output, vectors have one.
        hidden = name.startswith("layers.") and parameter.ndim >= 2
        assert rates.get(name, 1.0) == (ratio if hidden else 1.0), name
        if parameter.ndim >= 2:
            smaller = ratio if name.endswith("router.weight") else math.sqrt(ratio)
            expected = 0.02 * (smaller if hidden else 1.0)
            assert float(start) == pytest.approx(expected, rel=0.1), name
            assert float(own_start) == pytest.approx(0.02, rel=0.1), name
    assert (model.projection.scale, base.projection.scale) == (ratio, 1.0)
    assert not base.learning_rate_multipliers()


@pytest.mark.parametrize("setting", ["all", "top-p", "min-p", "greedy"])
def test_a_token_is_drawn_as_the_papers_say(setting: str) -> None:
    """Penalty, temperature, top-k, top-p, min-p, each on what the one before has left."""
    settings = {
        "all": (1.6, 9, 0.85, 0.2),
        "top-p": (0.7, 12, 0.6, 0.01),
        "min-p": (2.0, 12, 1.0, 0.5),
        "greedy": (0.0, 12, 1.0, 0.01),
    }
    t, k, p, m = settings[setting]
    generator = torch.Generator().manual_seed(4)
    rows = 400
    logits = torch.randn(rows, 12, generator=generator, dtype=torch.float64) * 2
    seen = torch.rand(rows, 12, generator=generator) < 0.3
    sampling = Sampling(temperature=t, top_k=k, top_p=p, min_p=m, repetition_penalty=1.5)
    seeds = [torch.Generator().manual_seed(row) for row in range(rows)]
    found = sample(logits, sampling, generators=seeds, seen=seen).tolist()
    for row in range(rows):
        values = dict(enumerate(logits[row].tolist()))
        for token in values:
            if seen[row, token]:
                values[token] *= 1.5 if values[token] < 0 else 1 / 1.5
        if not t:
            assert found[row] == max(values, key=lambda token: values[token])
            continue
        kept = sorted(values, key=lambda token: -values[token])[:k]
        shares = softmax({token: values[token] / t for token in kept})
        while sum(shares[token] for token in kept[:-1]) >= p:
            kept.pop()
        shares = softmax({token: values[token] / t for token in kept})
        kept = sorted(token for token in kept if shares[token] >= m * max(shares.values()))
        shares = softmax({token: values[token] / t for token in kept})
        drawn = torch.rand(1, dtype=torch.float64, generator=torch.Generator().manual_seed(row))
        sums = np.cumsum([shares[token] for token in kept])
        assert found[row] == kept[int((sums <= float(drawn)).sum())], row


def softmax(values: dict[int, float]) -> dict[int, float]:
    total = sum(math.exp(value) for value in values.values())
    return {token: math.exp(value) / total for token, value in values.items()}
