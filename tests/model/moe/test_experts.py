"""Experts: sorting, rows, products with their gradients, and the modules."""

from unittest.mock import patch

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from setpoint.model.block_modules import relu_squared
from setpoint.model.moe import experts
from setpoint.model.moe.experts import (
    Assignments,
    ExpertKernels,
    assign,
    capacity,
    grouped_experts,
    grouped_product,
    looped_gradient,
    looped_product,
    why_not_grouped,
)

from ...support.snapshots import refused
from .small import small_layer


def test_random_choices_against_counting() -> None:
    generator = torch.Generator().manual_seed(0)
    experts = torch.stack([torch.randperm(9, generator=generator)[:3] for _ in range(50)])
    valid = torch.rand(50, generator=generator) < 0.8
    found, load = assign(experts, 9, capacity_factor=0.9, valid=valid)
    limit = -(-int(valid.sum()) * 3 * 9 // (9 * 10))
    expected, taken = [], []
    for expert in range(9):
        tokens = [t for t in range(50) if valid[t] and expert in experts[t]]
        taken.append(len(tokens[:limit]))
        expected += [t * 3 + experts[t].tolist().index(expert) for t in tokens[:limit]]
    assert found.slots.tolist() == expected
    assert load.taken.flatten().tolist() == taken
    assert max(load.chosen.flatten().tolist()) > limit


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "factor", "expected"),
    [
        (10, 2, 4, 1.0, 5),
        (10, 2, 4, 1.01, 6),
        (10, 1, 1, 1.1, 11),  # as floats 10 * 1.1 is a little more than 11
        (1, 1, 64, 0.5, 1),  # at least one: what is left over is rounded up
        (0, 2, 4, 1.0, 0),
    ],
)
def test_capacity(tokens: int, top_k: int, experts: int, factor: float, expected: int) -> None:
    assert capacity(torch.tensor(tokens).double(), top_k, experts, factor).item() == expected


GROUP_ENDS = torch.tensor([2, 2, 5, 7])


@pytest.mark.filterwarnings("ignore:.*is not registered.*")
def test_what_compilers_are_told_is_true() -> None:
    rows, matrices = torch.randn(7, 3, requires_grad=True), torch.randn(4, 3, 5, requires_grad=True)
    torch.library.opcheck(looped_product, (rows, matrices, GROUP_ENDS))
    torch.library.opcheck(looped_gradient, (rows.detach(), torch.randn(7, 5), GROUP_ENDS))


def matrices(rows: int = 16, columns: int = 24, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(3, rows, columns).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_where_it_is_offered_it_works_forward_and_backward(dtype: torch.dtype) -> None:
    many = matrices(dtype=dtype).requires_grad_()
    rows, ends = torch.randn(7, 16).to(dtype).requires_grad_(), torch.tensor([2, 2, 7])
    assert why_not_grouped(many) is None
    product = grouped_product(rows, many, ends.int())
    torch.testing.assert_close(product, looped_product(rows, many, ends))
    product.float().square().sum().backward()
    assert many.grad is not None and not many.grad[1].any() and many.grad[2].any()


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "words"),
    [
        (16, 24, torch.float64, "does not support torch.float64"),
        (16, 6, torch.float32, "multiples of 4 in torch.float32, but one is 6"),
        (12, 16, torch.bfloat16, "multiples of 8 in torch.bfloat16, but one is 12"),
    ],
)
def test_why_not(rows: int, columns: int, dtype: torch.dtype, words: str) -> None:
    reason = why_not_grouped(matrices(rows, columns, dtype))
    assert reason is not None and words in reason


def test_why_not_without_data() -> None:
    with FakeTensorMode():
        assert "compiled" in (why_not_grouped(torch.empty(3, 16, 24)) or "")
        assert why_not_grouped(torch.empty(3, 16, 24, dtype=torch.bfloat16)) is None
    assert "for meta" in (why_not_grouped(torch.empty(3, 16, 24, device="meta")) or "")


class OnGpu(torch.Tensor):
    """Says that it lies on a GPU; plain otherwise."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("capability", "dtype", "words"),
    [
        ((9, 0), torch.bfloat16, None),
        ((8, 0), torch.bfloat16, None),
        ((7, 5), torch.bfloat16, "compute capability 8.0, this one has 7.5"),
        ((9, 0), torch.float32, "only bf16"),
    ],
)
def test_on_gpus(capability: tuple[int, int], dtype: torch.dtype, words: str | None) -> None:
    many = matrices(dtype=dtype).as_subclass(OnGpu)
    with patch("torch.cuda.get_device_capability", return_value=capability):
        reason = why_not_grouped(many)
    assert (reason is None) if words is None else (words in (reason or "")), reason


def test_an_older_pytorch() -> None:
    with patch("setpoint.model.moe.experts.F", object()):
        assert "has none" in (why_not_grouped(matrices()) or "")


# Four tokens, two choices each, three experts; the choice at 5 was dropped.
SLOTS, ENDS = torch.tensor([1, 2, 4, 3, 0, 6, 7]), torch.tensor([3, 4, 7])
FUNCTIONS = {"silu": F.silu, "relu_squared": relu_squared}


def tensors(gated: bool) -> list[torch.Tensor | None]:
    sizes = ((4, 3), (4, 2), (3, 3, 5), (3, 3, 5), (3, 5, 3))
    generator = torch.Generator().manual_seed(0)
    made: list[torch.Tensor | None] = [
        torch.randn(size, dtype=torch.float64, generator=generator).requires_grad_()
        for size in sizes
    ]
    return made if gated else [*made[:2], None, *made[3:]]


def composed(x, weights, gate, up, down, factors, activation, scales_inputs):
    """The same by single operations, row by row."""
    y = [torch.zeros(3, dtype=torch.float64) for _ in range(4)]
    for row, slot in enumerate(SLOTS.tolist()):
        expert, token = int((row >= ENDS).sum()), x[slot // 2]
        weight = weights.flatten()[slot]
        if scales_inputs:
            if factors is not None:  # of the row, not of its weight
                weight = weight.detach() + (weight - weight.detach()) / factors[row]
            token, weight = token * weight, 1.0
        inner = activation(token @ (up if gate is None else gate)[expert])
        inner = inner if gate is None else inner * (token @ up[expert])
        out = inner @ down[expert]
        if factors is not None:
            out = out.detach() + (out - out.detach()) * factors[row]
        y[slot // 2] = y[slot // 2] + weight * out
    return torch.stack(y)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("scales_inputs", [True, False])
def test_values_and_gradients(gated: bool, name: str, scaled: bool, scales_inputs: bool) -> None:
    inputs, activation = tensors(gated), FUNCTIONS[name]
    factors = torch.linspace(0.5, 2, 7, dtype=torch.float64) if scaled else None
    kernels = ExpertKernels(looped_product, looped_gradient, activation, 2, scales_inputs)
    found = grouped_experts(*inputs, *Assignments(SLOTS, ENDS, factors), kernels)
    expected = composed(*inputs, factors, activation, scales_inputs)
    torch.testing.assert_close(found, expected)
    given, upstream = [t for t in inputs if t is not None], torch.randn_like(expected)
    ours = torch.autograd.grad(found, given, upstream)
    theirs = torch.autograd.grad(expected, given, upstream)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_what_it_keeps() -> None:
    """The inputs, the two products, and a weight for each row."""
    kept: list[int] = []
    inputs = tensors(gated=True)
    kernels = ExpertKernels(looped_product, looped_gradient, F.silu, 2, scales_inputs=False)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        grouped_experts(*inputs, *Assignments(SLOTS, ENDS), kernels)
    x, _, *matrices = [t.numel() for t in inputs if t is not None]
    assert sum(kept) == x + sum(matrices) + 2 * 7 * 5 + 7 + len(SLOTS) + len(ENDS)


@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
def test_packed_and_unpacked_start_equal(activation: str) -> None:
    """And so does an expert wherever it lies: each is drawn by its own name."""
    packed = small_layer({"activation": activation}).experts
    unpacked = small_layer({"activation": activation}, packed=False).experts
    names = ("gate", "up", "down") if activation == "swiglu" else ("up", "down")
    assert {name for name, _ in packed.named_parameters()} == set(names)
    for name in names:
        for expert in range(4):
            own = getattr(unpacked[str(expert)], name).weight
            assert torch.equal(getattr(packed, name)[expert], own.T)
    assert not torch.equal(packed.up[0], packed.up[1])


def test_grouped_is_used_where_it_works_and_refused_in_words_elsewhere() -> None:
    used: list[str] = []

    def note(name: str):
        real = getattr(experts, name)
        return patch.object(experts, name, lambda *a: used.append(name) or real(*a))

    x, weights = torch.randn(5, 16), torch.ones(5, 1)
    assigned, _ = assign(torch.tensor([[0], [1], [2], [3], [3]]), 4)
    with note("grouped_product"), note("looped_product"):
        for way, dtype in (("auto", torch.float32), ("auto", torch.float64),
                           ("loop", torch.float32), ("grouped", torch.float32)):  # fmt: skip
            small_layer(dtype=dtype, implementation=way).experts(x.to(dtype), weights, assigned)
    grouped, looped = ["grouped_product"] * 3, ["looped_product"] * 3
    assert used == [*grouped, *looped, *looped, *grouped]
    layer = small_layer(dtype=torch.float64, implementation="grouped")
    with refused():
        layer(x.double().view(1, 5, 16))
