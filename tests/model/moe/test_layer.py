"""The layer against a loop over tokens in fp64, and its ways to compute against each other."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from setpoint.model.moe.layer import MoELayer

from ...support.snapshots import refused
from .naive import Answer, close, naive, naive_balance, naive_z
from .small import SigmoidTopK, SoftmaxTopK, small_layer, small_transformer

BATCH, LENGTH = 3, 7
UNBIASED = SigmoidTopK(bias_rate=None, normalize=False)
CASES: dict[str, dict[str, Any]] = {
    "softmax": {},
    "not normalized": {"router": SoftmaxTopK(normalize=False), "top_k": 3},
    "sigmoid": {"router": SigmoidTopK(), "route_scale": 2.5},
    "softmax groups": {"experts": 8, "groups": 4, "top_groups": 2, "top_k": 3},
    "sigmoid groups": {"experts": 8, "groups": 4, "top_groups": 2, "router": SigmoidTopK()},
    "one expert": {"experts": 1, "top_k": 1},
    "all experts": {"top_k": 4},
    "shared": {"shared_experts": 3},
    "ungated": {"model": {"activation": "relu_squared"}, "shared_experts": 1},
    "capacity": {"capacity_factor": 0.6},
    "capacity, unpacked": {"capacity_factor": 0.8, "packed": False, "router": SigmoidTopK()},
    "scaled inputs": {"scale_inputs": True, "router": UNBIASED, "top_k": 3},
    "scaled inputs, ungated": {"scale_inputs": True, "model": {"activation": "relu_squared"}},
    "scaled inputs, unpacked": {"scale_inputs": True, "packed": False, "router": UNBIASED},
    "unpacked": {"packed": False, "shared_experts": 1},
    "unpacked ungated": {"packed": False, "model": {"activation": "relu_squared"}},
}


def hidden(dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, LENGTH, 16, generator=generator, dtype=torch.float64)
    return x.to(dtype).requires_grad_()


def bias_at_random(layer: MoELayer) -> None:
    if layer.router.bias is not None:
        layer.router.bias.copy_(
            torch.tensor([0.3, -0.2, 0.1, -0.4, 0.0, 0.25, -0.1, 0.2])[: layer.count]
        )


def answer_of(layer: MoELayer, case: dict[str, Any], x: Tensor, **more: Any) -> tuple[Answer, Any]:
    """The naive answer, and the tensors it was computed with."""
    state = {name: t.detach().double() for name, t in layer.state_dict().items()}
    for name, tensor in state.items():
        tensor.requires_grad_(name != "router.bias")
    return naive(small_transformer(**case), state, x.detach().double().flatten(0, 1), **more), state


def all_tokens() -> list[int]:
    return list(range(BATCH * LENGTH))


@pytest.mark.parametrize("name", CASES)
def test_against_a_loop_over_tokens(name: str) -> None:
    """Outputs, reports, and gradients of all of them at once."""
    case = CASES[name]
    layer, x = small_layer(**case), hidden()
    bias_at_random(layer)
    y, routing = layer(x)
    assert routing is not None
    state = {
        n: t.detach().clone().requires_grad_(n != "router.bias")
        for n, t in layer.state_dict().items()
    }
    own = x.detach().clone().requires_grad_()
    expected = naive(small_transformer(**case), state, own.flatten(0, 1))

    torch.testing.assert_close(y.flatten(0, 1), expected.y)
    assert routing.counts.tolist() == expected.counts
    assert int(routing.dropped) == expected.dropped
    assert (expected.dropped > 0) == ("capacity" in name)
    sequences = [range(b * LENGTH, (b + 1) * LENGTH) for b in range(BATCH)]
    balance = naive_balance(expected, all_tokens(), layer.count)
    each = torch.stack([naive_balance(expected, list(s), layer.count) for s in sequences]).mean()
    z = naive_z(expected, all_tokens())
    torch.testing.assert_close(routing.balance, balance)
    torch.testing.assert_close(routing.sequence_balance, each)
    torch.testing.assert_close(routing.z, z)

    weights = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(9))
    ours = (y * weights).sum() + routing.balance + 2 * routing.sequence_balance + 3 * routing.z
    ours.backward()
    ((expected.y * weights.flatten(0, 1)).sum() + balance + 2 * each + 3 * z).backward()
    close(x.grad, own.grad, 1e-12)
    for parameter, tensor in layer.named_parameters():
        own_gradient = state[parameter].grad  # none for an expert that nobody chose
        close(tensor.grad, 0 * tensor if own_gradient is None else own_gradient, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("activation", ["swiglu", "relu_squared", "swiglu_clamped"])
def test_grouped_loop_and_unpacked_are_equal(dtype: torch.dtype, activation: str) -> None:
    """Forward and backward; unpacked experts of the same name start with the same weights."""
    model, bias = {"activation": activation}, activation == "swiglu_clamped"
    ways = {"auto": {}, "loop": {"implementation": "loop"}, "unpacked": {"packed": False}}
    if dtype != torch.float64:
        ways["grouped"] = {"implementation": "grouped"}
    found: dict[str, list[Tensor]] = {}
    for name, way in ways.items():
        layer, x = small_layer(model, dtype, experts=8, top_k=3, bias=bias, **way), hidden(dtype)
        y, _ = layer(x)
        y.float().square().sum().backward()
        assert x.grad is not None
        grads = {n: t.grad for n, t in layer.named_parameters() if "experts" in n}
        if name == "unpacked":
            packed = [n for n in ("gate", "up", "down") if f"experts.0.{n}.weight" in grads]
            parts = [[grads[f"experts.{e}.{n}.weight"].T for e in range(8)] for n in packed]
            if bias:
                parts += [[grads[f"experts.{e}.{n}.bias"] for e in range(8)] for n in packed]
            grads = {str(n): torch.stack(part) for n, part in enumerate(parts)}
        found[name] = [y, x.grad, *grads.values()]
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for name, tensors in found.items():
        for ours, theirs in zip(tensors, found["loop"], strict=True):
            assert ours.dtype == dtype
            close(ours, theirs, tolerance), name


@pytest.mark.parametrize("packed", [True, False])
def test_an_expert_that_nobody_chose_has_a_gradient_of_zero(packed: bool) -> None:
    """Not none: an optimizer would then treat packed and unpacked experts differently."""
    layer, x = small_layer(packed=packed, router=SigmoidTopK()), hidden()
    layer.router.bias.copy_(torch.tensor([0.0, 9.0, 9.0, 0.0]))
    y, routing = layer(x)
    assert routing.counts.tolist() == [0, 21, 21, 0]
    y.sum().backward()
    up = layer.experts.up.grad[0] if packed else layer.experts["0"].up.weight.grad
    assert up is not None and not up.any()


def test_padding_is_not_counted_and_takes_no_capacity() -> None:
    case = {"capacity_factor": 0.7, "router": SigmoidTopK()}
    layer, x = small_layer(**case), hidden()
    positions = torch.arange(LENGTH).repeat(BATCH, 1)
    positions[0, :3] = positions[2, :] = -1
    valid = (positions >= 0).flatten().tolist()
    y, routing = layer(x, positions)
    expected, _ = answer_of(layer, case, x, valid=valid)
    assert routing.counts.tolist() == expected.counts and sum(expected.counts) == 2 * sum(valid)
    assert int(routing.dropped) == expected.dropped > 0
    torch.testing.assert_close(y.flatten(0, 1), expected.y)
    tokens = [t for t in all_tokens() if valid[t]]
    torch.testing.assert_close(routing.balance, naive_balance(expected, tokens, 4))
    torch.testing.assert_close(routing.z, naive_z(expected, tokens))
    # Sequences weigh as many tokens as they have: 4 of the first, 7 of the second, 0 of the last.
    each = [naive_balance(expected, [t for t in tokens if t // LENGTH == b], 4) for b in (0, 1)]
    torch.testing.assert_close(routing.sequence_balance, (4 * each[0] + 7 * each[1]) / 11)


def test_only_padding_gives_zeros_and_no_nan() -> None:
    layer, x = small_layer(capacity_factor=1.0, gradient_scale=True, shared_experts=0), hidden()
    y, routing = layer(x, torch.full((BATCH, LENGTH), -1))
    assert not y.any() and not routing.counts.any()
    assert [term.item() for term in routing[2:]] == [0, 0, 0]
    (y.sum() + routing.balance + routing.z).backward()
    assert all(torch.isfinite(t.grad).all() for t in layer.parameters())


def test_evaluation_drops_nothing_and_reports_nothing() -> None:
    """So that a token does not depend on its neighbours, and evaluation moves no bias."""
    layer, x = small_layer(capacity_factor=0.3), hidden()
    y, routing = layer.eval()(x)
    assert routing is None
    expected, _ = answer_of(layer, {"capacity_factor": 0.3}, x, training=False)
    torch.testing.assert_close(y.flatten(0, 1), expected.y)
    torch.testing.assert_close(y[1:2, 3:4], layer(x[1:2, 3:4])[0])


def test_scaled_gradients_leave_values_and_routers_alone() -> None:
    plain, scaled = small_layer(), small_layer(gradient_scale=True)
    x, own = hidden(), hidden()
    y, routing = plain(x)
    scaled_y, _ = scaled(own)
    assert torch.equal(y, scaled_y)
    y.square().sum().backward()
    scaled_y.square().sum().backward()
    close(scaled.router.weight.grad, plain.router.weight.grad, 1e-12)
    factors = routing.counts.double().mean() / routing.counts
    assert factors.max() / factors.min() > 1.2
    for name in ("gate", "up", "down"):
        expected = getattr(plain.experts, name).grad * factors.view(-1, 1, 1)
        close(getattr(scaled.experts, name).grad, expected, 1e-12)
    assert not torch.allclose(own.grad, x.grad)


def test_recomputation_counts_once() -> None:
    """The inventory's trap: a bias that a recomputed forward pass moves twice."""
    layer, x = small_layer(router=SigmoidTopK()), hidden()
    y, routing = checkpoint(layer, x, use_reentrant=False)
    (y.sum() + routing.balance).backward()
    assert int(routing.counts.sum()) == BATCH * LENGTH * 2
    assert not layer.router.bias.any()
    plain = small_layer(router=SigmoidTopK())
    expected_y, expected = plain(hidden())
    (expected_y.sum() + expected.balance).backward()
    assert torch.equal(y, expected_y)
    for mine, theirs in zip(routing, expected, strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(layer.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_under_autocast_experts_compute_in_bf16_and_routers_in_fp32() -> None:
    layer, x = small_layer(dtype=torch.float32, experts=8, shared_experts=1), hidden(torch.float32)
    seen: list[torch.dtype] = []
    layer.router.register_forward_hook(lambda _m, _x, out: seen.append(out.logits.dtype))
    layer.experts.register_forward_hook(lambda _m, _x, out: seen.append(out.dtype))
    exact, wanted = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, routing = layer(x)
    assert seen == [torch.float32, torch.float32, torch.float32, torch.bfloat16]
    assert y.dtype == torch.bfloat16
    assert torch.equal(routing.counts, wanted.counts)
    assert torch.equal(routing.balance, wanted.balance)
    close(y, exact, 2e-2)


def test_compiled_in_one_graph() -> None:
    """By the grouped product; tests of whole models have the loop, which is one operation."""
    case = {"experts": 8, "router": SigmoidTopK(), "gradient_scale": True}
    layer, x = small_layer(dtype=torch.bfloat16, **case), hidden(torch.bfloat16)
    expected, wanted = layer(x)
    wanted_grad = torch.autograd.grad(expected.float().square().sum(), x)[0]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y, routing = compiled(x)
    close(y, expected, 3e-2)
    assert torch.equal(routing.counts, wanted.counts)
    y.float().square().sum().backward()
    close(x.grad, wanted_grad, 3e-2)


def test_nothing_is_kept_on_modules() -> None:
    layer = small_layer(router=SigmoidTopK(), capacity_factor=1.0, gradient_scale=True)
    before = {name: dict(vars(module)) for name, module in layer.named_modules()}
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer(hidden())[0].sum().backward()
    assert {name: dict(vars(module)) for name, module in layer.named_modules()} == before
    assert all(torch.equal(tensor, state[name]) for name, tensor in layer.state_dict().items())


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("packed", [True, False])
def test_parts_of_a_batch_are_batches_by_themselves(packed: bool, padded: bool) -> None:
    """Capacity, balance and scaled gradients over two sequences, however many come at once."""
    layer = small_layer(capacity_factor=0.8, gradient_scale=True, packed=packed, load_sequences=2)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 5, 16, dtype=torch.float64, generator=generator)
    positions = torch.arange(5).repeat(6, 1)
    if padded:
        # As much in each part, as a mean over parts is one over tokens then.
        positions[::2, 3:] = -1
    found: list[Any] = []
    for size in (6, 2):
        layer.zero_grad()
        inputs = x.clone().requires_grad_()
        outputs, reports = [], []
        for part, places in zip(inputs.split(size), positions.split(size), strict=True):
            y, report = layer(part, places if padded else None)
            assert report is not None
            (y.square().sum() + report.balance * size / 6).backward()
            outputs.append(y.detach())
            reports.append(report)
        found.append(
            (
                torch.cat(outputs),
                inputs.grad,
                [parameter.grad.clone() for parameter in layer.parameters()],
                sum(report.counts for report in reports),
                sum(report.dropped for report in reports),
                sum(report.balance * size / 6 for report in reports).detach(),
            )
        )
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)
    assert int(found[0][4]) > 0
    with refused(ValueError):
        layer(x[:3])
