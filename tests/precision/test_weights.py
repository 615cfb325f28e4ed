"""What the optimizer updates, where gradients add up, and how the model follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from setpoint.config import RunError
from setpoint.precision.mixed_precision import MasterWeights, OptimizerParams, cast_parameters

FP32, BF16 = torch.float32, torch.bfloat16


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


def test_own_weights_are_the_model_s() -> None:
    model = Tied()
    weights = OptimizerParams(model)
    ours, theirs = dict(weights.named_parameters()), dict(model.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(ours[name] is theirs[name] for name in ours)
    assert [*map(id, weights.parameters())] == [id(theirs["embedding.weight"]),
                                                id(theirs["inner.weight"])]  # fmt: skip
    backward(model)
    gradient = model.inner.weight.grad
    weights.grads_to_master()
    weights.master_to_params()
    assert model.inner.weight.grad is gradient
    assert weights.state() == {}


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
    gradient = model.inner.weight.grad
    assert gradient is not None
    assert gradient.dtype == (reduce or BF16)
    weights.grads_to_master()
    assert model.inner.weight.grad is None
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


def test_masters_of_a_model_that_is_short_already() -> None:
    model = Tied()
    cast_parameters(model, BF16)
    weights = MasterWeights(model)
    for name, held in weights.named_parameters():
        assert torch.equal(held, dict(model.named_parameters())[name].to(held.dtype))


def test_a_parameter_without_a_gradient_stays_without() -> None:
    model = Tied()
    cast_parameters(model, BF16)
    weights = MasterWeights(model)
    backward(model)
    model.inner.weight.grad = None
    weights.grads_to_master()
    held = dict(weights.named_parameters())
    assert held["inner.weight"].grad is None
    assert held["embedding.weight"].grad is not None


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
    with pytest.raises(RunError, match="no weight inner.weight to go on from"):
        loaded.load({"embedding.weight": saved["embedding.weight"]})


def test_a_model_in_fp32_goes_on_from_masters() -> None:
    model = Tied()
    weights = OptimizerParams(model)
    state = {name: tensor + 1e-6 for name, tensor in model.state_dict().items()}
    weights.load(state)
    assert torch.equal(model.inner.weight, state["inner.weight"])
    assert model.output.weight is model.embedding.weight
    assert not torch.equal(model.frozen.weight, state["frozen.weight"])


def test_two_ranks_equal_one_process(run_module: Callable[[str], None]) -> None:
    run_module("tests.precision.sharded_weights")
