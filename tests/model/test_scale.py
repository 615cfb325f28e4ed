"""muP: what is tuned at a small width holds at large ones."""

import math

import pytest
import torch
from torch.nn import functional as F

from setpoint.model.config import MuP
from setpoint.model.initialize import initialize
from setpoint.model.transformer import Transformer

from .small import small_config, small_model

BASE, RATE = 32, 1e-2


def test_the_table_of_the_paper():
    plain = small_config(init_std=0.2, layers=8)
    config = small_config(init_std=0.2, layers=8, mup=MuP(base_dim=6))
    assert config.width_ratio == 1 / 4
    assert config.hidden_std == pytest.approx(0.2 / 2)
    assert config.residual_std(0) == pytest.approx(0.2 / 2 / 4)
    assert config.router_std == pytest.approx(0.2 / 4)
    stds = (plain.hidden_std, plain.residual_std(7), plain.router_std)
    assert stds == pytest.approx((0.2, 0.05, 0.2))
    assert small_config(init_std=0.2, residual_init="plain").residual_std(3) == 0.2


def test_at_the_base_width_nothing_changes():
    tokens = torch.arange(9)[None]
    plain, model = small_model(), small_model(mup=MuP(base_dim=24))
    assert torch.equal(model(tokens), plain(tokens))
    assert model.learning_rate_multipliers() == {}
    assert plain.learning_rate_multipliers() == {}


def changes_in_training(dim: int, mup: bool) -> dict[str, float]:
    """How far activations of a model move in four updates of Adam, by their place."""
    model = small_config(
        dim=dim,
        heads=dim // 8,
        kv_heads=dim // 8,
        ffn_dim=2 * dim,
        # Without muP the usual scale: weights of variance 1 / width.
        init_std=0.1 if mup else 0.1 * math.sqrt(BASE / dim),
        mup=MuP(base_dim=BASE) if mup else None,
    ).build(vocab_size=64)
    initialize(model, 1)
    factors = model.learning_rate_multipliers()
    optimizer = torch.optim.Adam(
        {"params": [parameter], "lr_multiplier": factors.get(name, 1.0)}
        for name, parameter in model.named_parameters()
    )
    tokens = torch.randint(64, (4, 32), generator=torch.Generator().manual_seed(0))
    before = activations(model, tokens)
    for _ in range(4):
        for group in optimizer.param_groups:
            group["lr"] = RATE * group["lr_multiplier"]
        logits = model(tokens)[:, :-1]
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = activations(model, tokens)
    return {place: (after[place] - before[place]).abs().mean().item() for place in before}


def activations(model: Transformer, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    seen = {}
    hooks = [
        layer.register_forward_hook(lambda _, args, output, n=n: seen.update({n: output[0]}))
        for n, layer in model.layers.items()
    ]
    with torch.no_grad():
        seen["logits"] = model(tokens)
    for hook in hooks:
        hook.remove()
    return seen


def test_activations_move_as_far_at_every_width():
    """The coordinate check (Yang et al., 2022, appendix D.1)."""
    widths = (32, 64, 128, 256)
    ours = [changes_in_training(dim, mup=True) for dim in widths]
    usual = [changes_in_training(dim, mup=False) for dim in widths]
    for layer in ("0", "1"):
        moved = [change[layer] for change in ours]
        assert max(moved) < 1.2 * min(moved), moved
        assert usual[-1][layer] > 5 * usual[0][layer], "and without muP they blow up"
    moved = [change["logits"] for change in ours]
    assert max(moved) < 3 * min(moved), moved
    assert max(moved) == moved[0]
    assert usual[-1]["logits"] > 2 * usual[0]["logits"]
