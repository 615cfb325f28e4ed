"""From the section to the model's format, the weights and the scaler."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.config import RunError, resolve
from setpoint.config.composition import compose
from setpoint.loss.config import ChunkedCrossEntropy, CrossEntropy
from setpoint.model import load_pretrained
from setpoint.precision.config import LossScale, Precision
from setpoint.precision.mixed_precision import (
    LEAST,
    LossScaler,
    MasterWeights,
    OptimizerParams,
    build_scaler,
    cast_parameters,
    convert_state,
)
from setpoint.train.config import Job
from setpoint.train.objective import Objective
from setpoint.train.open import device_line

from ..model.families import FAMILIES
from ..model.pretrained.theirs import CASES, make, tokens
from ..model.small import small_model
from ..support.cases import few, rotated
from ..support.snapshots import refused
from ..support.tensors import make_batch

CPU, FP32, BF16 = torch.device("cpu"), torch.float32, torch.bfloat16
FORMATS = {"fp32": FP32, "bf16": BF16}
IN_BF16: dict[str, Any] = {"params": "bf16", "compute": "bf16"}


def section(**values: Any) -> Precision:
    return resolve(Precision(**values))


def test_of_a_foreign_state_only_what_followed_the_weights_is_converted() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([weight])
    table = torch.ones(2, 3)
    exact = torch.ones(3, dtype=torch.float64)
    optimizer.state[weight] = {"mean": torch.ones(3), "exact": exact, "table": table}
    others = {weight: torch.float32}
    convert_state(section(**IN_BF16), optimizer, others)
    assert optimizer.state[weight]["mean"].dtype == torch.bfloat16
    assert optimizer.state[weight]["table"] is table
    # What was not in the format of its weight does not follow it now.
    assert optimizer.state[weight]["exact"] is exact
    convert_state(section(**IN_BF16), optimizer)
    assert optimizer.state[weight]["table"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("capability", "compute", "said"),
    [("AVX2", "bf16", True), ("AVX512", "bf16", False), ("AVX2", "fp32", False)],
)
def test_emulated_bf16_is_said_at_the_start(
    capability: str, compute: str, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    job = compose(Job, "tiny", flags=[f"--precision.compute={compute}"]).resolve()
    assert ("fp32 is several times as fast" in device_line(job, CPU)) == said


def update(scaler: LossScaler, factor: float = 1.0) -> tuple[bool, torch.Tensor]:
    """One step on the square of a weight of 1; whether it was made, and the weight."""
    weight = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=0.25)
    scaler.scale(weight.square() * factor).backward()
    scaler.unscale_(optimizer)
    overflows = any(scaler.overflows(optimizer))
    if not overflows:
        optimizer.step()
    before = scaler.get_scale()
    scaler.update()
    if overflows:
        scaler.skip(before)
    return not overflows, weight.detach()


def scaler_of(**options: float) -> LossScaler:
    return LossScaler("cpu", resolve(LossScale(**options)))  # pyright: ignore[reportArgumentType]


def test_the_section_is_what_pytorch_s_scaler_gets() -> None:
    ours = scaler_of(initial=8.0, growth=3.0, backoff=0.25, growth_interval=2).state_dict()
    theirs = torch.amp.GradScaler(
        "cpu", init_scale=8.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=2
    )
    assert ours == {**theirs.state_dict(), "skipped": 0}
    assert scaler_of().state_dict() == {**torch.amp.GradScaler("cpu").state_dict(), "skipped": 0}


def test_only_fp16_is_scaled_and_the_scale_is_taken_away_again() -> None:
    scaler = build_scaler(section(compute="bf16"), CPU)
    assert update(scaler) == (True, torch.tensor(0.5))
    assert scaler.metrics() == scaler.state_dict() == {}
    assert math.isnan(update(scaler, math.nan)[1])
    scaler = build_scaler(section(compute="fp16", loss_scale=LossScale(initial=1024.0)), CPU)
    assert update(scaler) == (True, torch.tensor(0.5))
    assert scaler.metrics() == {"loss_scale": 1024.0, "skipped_steps": 0}


def test_an_overflow_is_skipped_and_counted() -> None:
    scaler = scaler_of(initial=2.0**127, backoff=0.5, growth_interval=1)
    made, weight = update(scaler, 8.0)
    assert (made, weight) == (False, torch.tensor(1.0))
    assert scaler.metrics() == {"loss_scale": 2.0**126, "skipped_steps": 1}
    assert update(scaler, 0.25)[0]
    assert scaler.metrics() == {"loss_scale": 2.0**127, "skipped_steps": 1}
    other = scaler_of()
    other.load_state_dict(scaler.state_dict())
    assert other.metrics() == scaler.metrics()


def test_a_scale_that_cannot_help_ends_the_run() -> None:
    scaler = scaler_of(initial=2 * LEAST)
    assert not update(scaler, math.inf)[0]
    with refused(RunError):
        update(scaler, math.nan)


def test_settings_are_those_of_today_and_only_counts_come_back() -> None:
    before = scaler_of(initial=8.0, growth=2.0, backoff=0.5, growth_interval=100)
    assert update(before)[0]
    after = scaler_of(initial=4.0, growth=3.0, backoff=0.25, growth_interval=10)
    after.load_state_dict(before.state_dict())
    assert after.state_dict() == {
        "scale": 8.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 10,
        "_growth_tracker": 1, "skipped": 0,
    }  # fmt: skip
    # A run that did not scale before begins as configured.
    fresh = scaler_of(initial=4.0)
    fresh.load_state_dict({})
    assert fresh.get_scale() == 4.0


KINDS = ("llama 3.1", "mistral", "qwen2", "qwen3", "qwen3 moe", "gemma2", "gemma3", "gpt2")
LOSSES = {
    "plain": CrossEntropy(),
    "smooth": CrossEntropy(z_loss=0.01, label_smoothing=0.1),
    "chunked": ChunkedCrossEntropy(z_loss=0.01, chunk_size=16),
}


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.detach().float() - exact.detach()).norm() / exact.detach().norm())


def gradient(model: Any) -> Tensor:
    return torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None])


def rounded(folder: Path, case: str) -> None:
    """Write a model of theirs whose weights bf16 holds exactly, so that only computing rounds."""
    kind, keys = CASES[case]
    model = make(kind, keys)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((0.5 * parameter).bfloat16())
    model.save_pretrained(folder)


@pytest.mark.parametrize("case", few(KINDS, every=2))
def test_logits_and_gradients_against_transformers(case: str, tmp_path: Path) -> None:
    import transformers

    rounded(tmp_path, case)
    exact, ours = load_pretrained(tmp_path), load_pretrained(tmp_path)
    cast_parameters(ours, BF16)
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=BF16, attn_implementation="eager"
    )
    inputs = tokens()
    targets = inputs.roll(-1, dims=1)
    logits, slopes = [], []
    for model in (exact, ours, theirs.eval()):
        found = model(inputs)
        logits.append(found if isinstance(found, Tensor) else found.logits)
        F.cross_entropy(logits[-1].float().flatten(0, 1), targets.flatten()).backward()
        slopes.append(gradient(model))
    assert [each.dtype for each in logits] == [torch.float32, BF16, BF16]
    assert error(logits[1], logits[0]) < 1.1 * error(logits[2], logits[0]) < 0.02
    assert slopes[0].norm() > 0.1
    # Theirs are in another order, and packed otherwise; as a whole they are as long.
    # With other random weights Gemma 3 gives 0.027 to 0.034.
    assert error(slopes[1], slopes[0]) < 0.04
    assert float(slopes[1].norm()) == pytest.approx(float(slopes[2].norm()), rel=0.02)


@pytest.mark.parametrize(
    ("family", "loss"), few(product(FAMILIES, LOSSES), rotated(FAMILIES, LOSSES))
)
def test_losses_and_gradients_against_fp32(family: str, loss: str) -> None:
    """Of latent attention, sigmoid routers, caps and the like, with what experts add to a loss."""
    exact, ours = (small_model(**{**FAMILIES[family], "init_std": 0.02}) for _ in range(2))
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(parameter.bfloat16())
    cast_parameters(ours, BF16)
    inputs = torch.randint(0, 37, (2, 24), generator=torch.Generator().manual_seed(0))
    totals, slopes, chosen = list[Tensor](), list[Tensor](), list[Any]()
    for model in (exact, ours):
        objective = Objective(model.train(), resolve(LOSSES[loss]).build())
        output, auxiliary, routing = objective(make_batch(inputs, inputs.roll(-1, dims=1)))
        assert output.total.dtype == output.nats.dtype == torch.float32
        assert auxiliary is None or auxiliary.dtype == torch.float32
        total = output.total / inputs.numel() + (0.0 if auxiliary is None else auxiliary)
        total.backward()
        totals.append(total.detach())
        slopes.append(gradient(model))
        chosen.append(None if routing is None else routing.counts.tolist())
    # A token between two experts may go to the other one; here none does.
    assert chosen[0] == chosen[1]
    assert float(totals[1]) == pytest.approx(float(totals[0]), rel=1e-3)
    assert error(slopes[1], slopes[0]) < 0.01


class Tied(nn.Module):
    """A table that is its own output matrix, a frozen layer, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 8)
        self.inner = nn.Linear(8, 8, bias=False)
        self.frozen = nn.Linear(8, 8, bias=False).requires_grad_(False)
        self.output = nn.Linear(8, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("angles", torch.rand(8))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.output(self.frozen(self.inner(x)) + x)


def backward(model: nn.Module, seed: int = 0) -> None:
    tokens = torch.randint(0, 7, (5,), generator=torch.Generator().manual_seed(seed))
    model(tokens).float().logsumexp(-1).sum().backward()


def test_parameters_are_cast_and_buffers_are_not() -> None:
    model = Tied()
    before, identities = model.embedding.weight.detach().clone(), [*map(id, model.parameters())]
    cast_parameters(model, BF16)
    assert [*map(id, model.parameters())] == identities
    assert model.output.weight is model.embedding.weight
    assert {p.dtype for p in model.parameters()} == {BF16}
    assert [p.requires_grad for p in model.parameters()] == [True, True, False]
    assert model.get_buffer("angles").dtype == FP32
    assert torch.equal(model.embedding.weight, before.to(BF16))
    weights = OptimizerParams(model)
    held = dict(weights.named_parameters())
    assert all(held[name] is parameter for name, parameter in model.named_parameters())
    assert len([*weights.parameters()]) == 2 and weights.state() == {}


@pytest.mark.parametrize(("stored", "reduce"), [(BF16, FP32), (FP32, BF16)])
def test_gradients_add_up_in_a_format_of_their_own(stored: torch.dtype, reduce: torch.dtype):
    model = Tied()
    cast_parameters(model, stored)
    weights, oracle = OptimizerParams(model, reduce), Tied()
    cast_parameters(oracle, stored)
    total = torch.zeros(8, 8, dtype=reduce)
    for seed in range(5):
        backward(model, seed)
        assert model.inner.weight.grad is not None
        assert model.inner.weight.grad.dtype == reduce
        oracle.zero_grad()
        backward(oracle, seed)
        assert oracle.inner.weight.grad is not None
        total += oracle.inner.weight.grad.to(reduce)
    gradient = model.inner.weight.grad
    assert gradient is not None
    assert torch.equal(gradient, total)
    weights.grads_to_master()
    held = dict(weights.named_parameters())["inner.weight"]
    assert model.inner.weight.grad is None
    assert held.grad is not None
    assert held.grad.dtype == held.dtype == stored
    assert torch.equal(held.grad, total.to(stored))
    # An update of the one is an update of the other: they share their memory.
    torch.optim.AdamW(weights.named_parameters(), lr=0.1, fused=True).step()
    assert held.data_ptr() == model.inner.weight.data_ptr()
    assert torch.equal(held, model.inner.weight)
    assert not torch.equal(held, oracle.inner.weight)


@pytest.mark.parametrize("reduce", [None, FP32, BF16])
def test_masters_take_what_the_cast_would_lose(reduce: torch.dtype | None) -> None:
    model, oracle = Tied(), Tied()
    full = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    cast_parameters(model, BF16)
    weights = MasterWeights(model, full, reduce)
    held = dict(weights.named_parameters())
    assert [*held] == [name for name, _ in oracle.named_parameters()]
    for name, before in oracle.named_parameters():
        if name == "frozen.weight":
            assert held[name] is model.frozen.weight
        else:
            assert torch.equal(held[name], before)  # bit for bit: nothing was rounded
            assert held[name].data_ptr() == full[name].data_ptr()  # and nothing copied
    backward(model)
    gradient, model.embedding.weight.grad = model.inner.weight.grad, None
    assert gradient is not None
    assert gradient.dtype == (reduce or BF16)
    weights.grads_to_master()
    assert model.inner.weight.grad is held["embedding.weight"].grad is None
    moved = held["inner.weight"].grad
    assert moved is not None
    assert moved.dtype == FP32
    assert torch.equal(moved, gradient.float())
    if reduce == FP32:
        assert moved.data_ptr() == gradient.data_ptr()
    torch.optim.SGD(weights.named_parameters(), lr=1e-3).step()
    weights.master_to_params()
    assert torch.equal(held["inner.weight"], oracle.inner.weight - 1e-3 * moved)
    assert torch.equal(model.inner.weight, held["inner.weight"].to(BF16))
    assert model.output.weight is model.embedding.weight
    assert torch.equal(model.output.weight, held["embedding.weight"].to(BF16))


def test_masters_are_saved_and_loaded_bit_for_bit() -> None:
    model, other = Tied(), Tied()
    for each in (model, other):
        cast_parameters(each, BF16)
    weights, loaded = MasterWeights(model), MasterWeights(other)
    with torch.no_grad():
        for parameter in weights.parameters():
            parameter.add_(1e-5 * torch.rand_like(parameter))
    weights.master_to_params()
    state = weights.state()
    assert sorted(state) == ["embedding.weight", "inner.weight"]
    saved = {name: tensor.clone() for name, tensor in state.items()}
    loaded.load({**model.state_dict(), **saved})
    for one, two in zip(weights.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(other.inner.weight, model.inner.weight)
    # A run that had no masters: from the weights of its model, in whatever they were.
    exact = {name: tensor + 0.01 for name, tensor in saved.items()}
    loaded.load(exact)
    assert torch.equal(loaded.state()["inner.weight"], exact["inner.weight"])
    assert torch.equal(other.inner.weight, exact["inner.weight"].to(BF16)), "the model follows"
    with refused(RunError):
        loaded.load({"embedding.weight": saved["embedding.weight"]})


def test_a_model_in_fp32_goes_on_from_masters() -> None:
    model = Tied()
    weights = OptimizerParams(model)
    state = {name: tensor + 1e-6 for name, tensor in model.state_dict().items()}
    weights.load(state)
    assert torch.equal(model.inner.weight, state["inner.weight"])
    assert model.output.weight is model.embedding.weight
    assert not torch.equal(model.frozen.weight, state["frozen.weight"])
