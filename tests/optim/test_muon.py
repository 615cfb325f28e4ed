"""Muon against torch.optim.Muon, and its other half against torch.optim.AdamW."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim._muon import _zeropower_via_newtonschulz

from setpoint.config import resolve
from setpoint.optim import muon as module
from setpoint.optim.config import MuonConfig
from setpoint.optim.muon import A, B, C, adjustment, orthogonalize

from ..support.cases import few
from .problem import Groups, assert_resumes, flat, follow, groups, network


def build(given: Any, state_dtype: torch.dtype | None = None, **fields: Any) -> Any:
    return resolve(MuonConfig(**fields)).build(parameters=given, state_dtype=state_dtype)


def split(model: nn.Module) -> Groups:
    """Groups as the section makes them: vectors are AdamW's."""
    *matrices, rest = groups(model)
    return [*matrices, {**rest, "algorithm": "adamw"}]


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each matrix by itself, as in torch.optim.Muon."""
    monkeypatch.setattr(module, "at_once", lambda device: 1)


CHOICES = [{}, {"nesterov": False, "momentum": 0.8}, {"adjust_lr": "match_rms_adamw"}, {"steps": 3}]


def oracle(model: nn.Module, fields: dict[str, Any]) -> list[torch.optim.Optimizer]:
    """torch.optim.Muon and torch.optim.AdamW, each over its groups."""
    *matrices, rest = groups(model)
    names = {"adjust_lr": "adjust_lr_fn", "steps": "ns_steps"}
    options = {names.get(name, name): value for name, value in fields.items()}
    return [
        torch.optim.Muon(matrices, **options),
        torch.optim.AdamW([rest], betas=(0.9, 0.95), fused=True),
    ]


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("dtype", few([torch.float32, torch.float64], [torch.float32]))
@pytest.mark.parametrize("fields", CHOICES)
def test_a_hundred_steps_against_torch(fields: dict[str, Any], dtype: torch.dtype) -> None:
    """To the last bit, in which all of the iteration is bf16."""
    ours, theirs = network(dtype), network(dtype)
    our_losses = follow([build(split(ours), **fields)], ours)
    their_losses = follow(oracle(theirs, fields), theirs)
    assert torch.equal(flat(ours), flat(theirs)) and our_losses == their_losses
    assert sum(our_losses[-10:]) < 0.5 * sum(our_losses[:10])


@pytest.mark.parametrize("fields", CHOICES[:2])
def test_matrices_in_batches(fields: dict[str, Any]) -> None:
    """Products of batches may round the last bit of bf16 elsewhere.

    Training lets that grow; over a few given gradients it stays within a bit for each.
    """
    ours, theirs = [nn.Linear(24, 40, bias=False) for _ in range(5)], []
    for layer in ours:
        torch.manual_seed(len(theirs))
        layer.weight.data.normal_()
        theirs.append(nn.Parameter(layer.weight.detach().clone()))
    given = [(str(i), layer.weight) for i, layer in enumerate(ours)]
    optimizer = build(given, lr=0.02, **fields)
    names = {"adjust_lr": "adjust_lr_fn", "steps": "ns_steps"}
    options = {names.get(name, name): value for name, value in fields.items()}
    other = torch.optim.Muon(theirs, lr=0.02, **options)
    for step in range(10):
        torch.manual_seed(100 + step)
        for layer, twin in zip(ours, theirs, strict=True):
            twin.grad = torch.randn_like(twin)
            layer.weight.grad = twin.grad.clone()
        optimizer.step()
        other.step()
    size = 0.02 * adjustment(fields.get("adjust_lr", "original"), 40, 24)
    for layer, twin in zip(ours, theirs, strict=True):
        torch.testing.assert_close(layer.weight.data, twin.data, rtol=0, atol=10 * size * 2**-7)


def test_portions_bound_what_is_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = module.orthogonalize

    def watched(matrices: torch.Tensor, steps: int) -> torch.Tensor:
        seen.append(len(matrices))
        return real(matrices, steps)

    monkeypatch.setattr(module, "orthogonalize", watched)
    monkeypatch.setattr(module, "at_once", lambda device: 3 * 12)
    weights = [nn.Parameter(torch.randn(3, 4)) for _ in range(7)]
    experts = nn.Parameter(torch.randn(5, 3, 4))
    given = [(str(i), each) for i, each in enumerate([*weights, experts])]
    optimizer = build(given)
    for _, parameter in given:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    assert seen == [3, 3, 1, 3, 2]


def test_packed_experts_are_batches_of_matrices() -> None:
    """Each expert as the transposed weight of a layer of its own: (E, in, out)."""
    torch.manual_seed(0)
    packed = nn.Parameter(torch.randn(3, 6, 10))
    apart = [nn.Parameter(each.T.contiguous()) for each in packed.detach()]
    optimizer = build([("experts", packed)], lr=0.1, weight_decay=0.5)
    other = torch.optim.Muon(apart, lr=0.1, weight_decay=0.5)
    for step in range(4):
        torch.manual_seed(step)
        packed.grad = torch.randn_like(packed)
        for each, gradient in zip(apart, packed.grad, strict=True):
            each.grad = gradient.T.contiguous()
        optimizer.step()
        other.step()
    expected = torch.stack([each.detach().T for each in apart])
    torch.testing.assert_close(packed.detach(), expected, rtol=0, atol=4 * 0.13 * 2**-7)


def test_convolutions_are_one_matrix() -> None:
    torch.manual_seed(0)
    kernel = nn.Parameter(torch.randn(8, 3, 2, 2))
    twin = nn.Parameter(kernel.detach().flatten(1).clone())
    optimizer, other = build([("c", kernel)]), torch.optim.Muon([twin], lr=0.02)
    kernel.grad = torch.randn_like(kernel)
    twin.grad = kernel.grad.flatten(1).clone()
    optimizer.step()
    other.step()
    assert torch.equal(kernel.detach().flatten(1), twin.detach())


@pytest.mark.parametrize(
    ("weights", "state"),
    [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.bfloat16, None)],
)
def test_formats_of_the_state(weights: torch.dtype, state: torch.dtype | None) -> None:
    model = network(weights)
    optimizer = build(split(model), state)
    losses = follow([optimizer], model)
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    kept = {name: value.dtype for each in optimizer.state.values() for name, value in each.items()}
    assert kept.pop("step") is torch.float32
    assert kept.keys() == {"momentum_buffer", "exp_avg", "exp_avg_sq"}
    assert set(kept.values()) == {state or weights}


def test_a_mean_in_bf16_is_not_changed_by_the_iteration() -> None:
    """torch.optim.Muon (2.13) scales a bf16 mean in place where there is no Nesterov step."""
    weight = nn.Parameter(torch.randn(4, 4).bfloat16())
    optimizer = build([("w", weight)], nesterov=False, momentum=0.5)
    weight.grad = torch.full_like(weight, 8.0)
    optimizer.step()
    assert optimizer.state[weight]["momentum_buffer"].eq(4.0).all()


@pytest.mark.parametrize("state", [None, torch.bfloat16])
def test_state_returns_exactly(state: torch.dtype | None) -> None:
    def make(given: Groups) -> torch.optim.Optimizer:
        *matrices, rest = given
        return build([*matrices, {**rest, "algorithm": "adamw"}], state)

    assert_resumes(make, torch.float32)


@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
def test_matrices_the_other_way_round(shape: tuple[int, int]) -> None:
    """The adjustment is that of the transposed weight, as torch.nn.Linear has it."""
    torch.manual_seed(0)
    turned = nn.Parameter(torch.randn(shape))
    twin = nn.Parameter(turned.detach().T.contiguous())
    optimizer = build([{"params": [("t", turned)], "inputs_first": True}], lr=0.1)
    other = torch.optim.Muon([twin], lr=0.1)
    turned.grad = torch.randn_like(turned)
    twin.grad = turned.grad.T.contiguous()
    optimizer.step()
    other.step()
    torch.testing.assert_close(turned.detach().T, twin.detach(), rtol=0, atol=0.13 * 2**-7)


@pytest.mark.parametrize("shape", [(16, 16), (8, 24), (24, 8), (1, 5), (5, 1)])
def test_against_torch(shape: tuple[int, int]) -> None:
    for seed in range(5):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        theirs = _zeropower_via_newtonschulz(matrix, (A, B, C), 5, 1e-7)
        assert torch.equal(orthogonalize(matrix[None], 5)[0], theirs)


def test_zero_stays_zero_and_nothing_is_changed() -> None:
    matrices = torch.zeros(2, 3, 4, dtype=torch.bfloat16)
    matrices[1] = 5.0
    before = matrices.clone()
    found = orthogonalize(matrices, 5)
    assert torch.equal(matrices, before)
    assert found[0].eq(0).all() and found[1].ne(0).all()
    one = before[1:].clone()
    orthogonalize(one, 5)
    assert torch.equal(one, before[1:])
