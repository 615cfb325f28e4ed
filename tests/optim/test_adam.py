"""AdamW with weights and state in bf16."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import resolve
from setpoint.optim import elementwise as module
from setpoint.optim.config import AnyPrecisionAdamWConfig
from setpoint.optim.elementwise import AnyPrecisionAdamW as Optimizer
from setpoint.optim.elementwise import adam_of, random_bits, round_stochastically

from ..support.cases import few
from .problem import assert_resumes, flat, follow, groups, learnt, network

BF16 = torch.bfloat16


def build(
    given: Any, state_dtype: torch.dtype | None = None, seed: int = 1, **fields: Any
) -> Optimizer:
    made = resolve(AnyPrecisionAdamWConfig(**fields)).build(
        parameters=given, state_dtype=state_dtype, seed=seed
    )
    assert isinstance(made, Optimizer)
    return made


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", few([torch.float32, torch.float64], [torch.float32]))
def test_a_hundred_steps_against_torch(rounding: str, dtype: torch.dtype) -> None:
    """To the last bit: what has 32 bits or more is not rounded."""
    ours, our_losses = learnt(lambda given: build(given, rounding=rounding), dtype)
    theirs, their_losses = learnt(
        lambda given: torch.optim.AdamW(given, betas=(0.9, 0.95), fused=True), dtype
    )
    assert torch.equal(ours, theirs) and our_losses == their_losses


def test_one_step_in_bf16_is_the_step_in_fp32_rounded_once() -> None:
    """Of weights and both means; torchdistx' AnyPrecisionAdamW rounds in between as well."""
    model, full = network(BF16), network(BF16).float()
    optimizer = build(groups(model), rounding="nearest")
    oracle = torch.optim.AdamW(groups(full), lr=3e-4, betas=(0.9, 0.95), fused=True)
    for p, q in zip(model.parameters(), full.parameters(), strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.float()
    optimizer.step()
    oracle.step()
    for p, q in zip(model.parameters(), full.parameters(), strict=True):
        assert torch.equal(p, q.to(BF16))
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[p][name], oracle.state[q][name].to(BF16))


def test_small_updates_are_kept_on_average() -> None:
    """Steps of 1/64 of the distance between bf16 numbers are lost by rounding to the nearest."""
    found = {}
    for rounding in ("nearest", "stochastic"):
        weight = nn.Parameter(torch.ones(20_000, dtype=BF16))
        optimizer = build([("w", weight)], rounding=rounding, weight_decay=0.0, lr=2.0**-14)
        for _ in range(64):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        found[rounding] = 1.0 - float(weight.detach().double().mean())
    # Each step is lr, as the gradient does not change.
    assert found["nearest"] == 0.0
    assert found["stochastic"] == pytest.approx(64 * 2.0**-14, rel=0.02)


@pytest.mark.parametrize(
    ("weights", "state", "rounding"),
    [(torch.float32, BF16, "nearest"), (BF16, torch.float32, "stochastic"),
     (BF16, None, "stochastic")],
)  # fmt: skip
def test_formats(weights: torch.dtype, state: torch.dtype | None, rounding: str) -> None:
    model = network(weights)
    optimizer = build(groups(model), state, rounding=rounding)
    losses = follow([optimizer], model)
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])
    kept = [each[name].dtype for each in optimizer.state.values() for name in each]
    assert set(kept) == {torch.float32, state or weights}
    assert {p.dtype for p in model.parameters()} == {weights}


def test_noise_depends_on_seed_step_and_name_alone() -> None:
    def trained(seed: int, noisy: bool = False) -> torch.Tensor:
        model = network(BF16)
        optimizer = build(groups(model), seed=seed)
        for step in range(3):
            if noisy:
                torch.rand(step + 1)
            follow([optimizer], model, step, step + 1)
        return flat(model)

    first = trained(3)
    assert torch.equal(trained(3), first)
    assert torch.equal(trained(3, noisy=True), first)
    assert not torch.equal(trained(4), first)


def test_parameters_and_steps_have_noise_of_their_own() -> None:
    weights = [nn.Parameter(torch.ones(4000, dtype=BF16)) for _ in range(2)]
    optimizer = build([("a", weights[0]), ("b", weights[1])], lr=2.0**-10, weight_decay=0.0)
    seen: list[torch.Tensor] = []
    for _ in range(2):
        before = [weight.detach().clone() for weight in weights]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        seen += [w.detach() != old for w, old in zip(weights, before, strict=True)]
    for i, one in enumerate(seen):
        assert 0.1 < one.double().mean() < 0.9
        for other in seen[:i]:
            # Two independent draws agree about as often as chance would have it.
            p, q = one.double().mean(), other.double().mean()
            chance = p * q + (1 - p) * (1 - q)
            assert abs((one == other).double().mean() - chance) < 0.05


def test_no_numbers_are_taken_from_the_common_generator() -> None:
    model = network(BF16)
    optimizer = build(groups(model))
    model(torch.ones(2, 8, dtype=BF16)).sum().backward()
    before = torch.get_rng_state()
    optimizer.step()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("weights", "state"), [(torch.float32, BF16), (BF16, torch.float32), (BF16, None)]
)
def test_state_returns_exactly(weights: torch.dtype, state: torch.dtype | None) -> None:
    assert_resumes(lambda given: build(given, state), weights)


@pytest.mark.parametrize("fused", [True, False])
def test_the_step_lies_where_a_fused_kernel_reads_it(
    monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    """As after a resume on a GPU, for which the meta device stands in."""
    monkeypatch.setattr(module, "can_fuse", lambda tensors: fused)
    weight = nn.Parameter(torch.ones(2, device="meta"))
    weight.grad = torch.ones_like(weight)
    new: dict[str, torch.Tensor] = {}
    loaded = {
        "step": torch.tensor(3.0),
        "exp_avg": torch.zeros_like(weight),
        "exp_avg_sq": torch.zeros_like(weight),
    }
    for state in (new, loaded):
        held = adam_of(weight, state, None)
        assert held.step is state["step"]
        assert held.step.device.type == ("meta" if fused else "cpu")
        assert held.step.dtype == torch.float32
    if not fused:
        assert loaded["step"] == 3.0


def rounded(value: torch.Tensor, seed: int = 0) -> torch.Tensor:
    noise = random_bits(value.numel(), torch.Generator().manual_seed(seed))
    return round_stochastically(value, noise.view(value.shape))


@pytest.mark.parametrize("value", [1.0 + 2**-9, 1.0 + 0.9 * 2**-7, -1e-20, 2.5e37])
def test_the_mean_is_the_value(value: float) -> None:
    """Both neighbours occur, and their mean is the value, within five standard errors."""
    count = 200_000
    found = rounded(torch.full((count,), value)).double()
    exact = torch.tensor(value).double()
    low, high = found.min(), found.max()
    assert low < exact < high
    gap = high - low
    # The two are neighbours in bf16.
    assert gap <= 2**-7 * 2 ** math.floor(math.log2(abs(value)))
    share = (exact - low) / gap
    error = gap * (share * (1 - share) / count).sqrt()
    assert (found.mean() - exact).abs() < 5 * error
    # Rounding to the nearest would be off by more.
    assert (exact.bfloat16().double() - exact).abs() > 5 * error


def test_what_bf16_has_stays() -> None:
    numbers = [0.0, -0.0, 1.0, -2.5, 3e38, 1e-40, math.inf, -math.inf]
    values = torch.tensor(numbers).bfloat16().float()
    for seed in range(20):
        found = rounded(values, seed)
        assert torch.equal(found.float(), values)
        assert torch.equal(torch.signbit(found), torch.signbit(values))


def test_what_is_no_number_stays_none() -> None:
    infinite = torch.tensor([math.inf, -math.inf]).repeat(1000)
    assert rounded(infinite - infinite).isnan().all()
    assert rounded(infinite * 0 * -1).isnan().all()
