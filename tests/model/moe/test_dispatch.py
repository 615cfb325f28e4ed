"""Experts on several ranks give what a loop over rows gives on one, in fp64, with all gradients."""

import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.config import SetpointError, resolve
from setpoint.memory.checkpointing import contexts, recompute
from setpoint.model.config import TransformerConfig
from setpoint.model.huggingface.model_parallel import use_experts
from setpoint.model.moe import dispatch
from setpoint.model.moe.dispatch import (
    AllToAllDispatcher,
    DeepEPDispatcher,
    TensorParallelDispatcher,
    TokenDispatcher,
    build_dispatcher,
    run_locally,
)
from setpoint.model.moe.experts import Assignments, PackedExperts, assign, load_factors
from setpoint.parallel.config import DeepEP, Parallel
from setpoint.shapes.peers import Peers
from setpoint.units import ByteSize

from ...support.ranks import run_on_ranks
from . import stand_in_deepep
from .small import small_layer

EXPERTS, TOP_K, DIM = 4, 2, 16
NAMES = ("gate", "up", "down")
TOKENS = (7, 5, 3, 0)
"""Numbers of tokens of four ranks; two ranks have the last two."""


def world() -> int:
    return dist.get_world_size()


class Held(NamedTuple):
    """Experts of a rank: part `expert` of `parts`, and part `inner` of 2 of their width."""

    parts: int
    expert: int
    inner: int | None = None
    copies: dist.ProcessGroup | None = None
    alike: int = 1

    def of(self, full: Tensor, name: str) -> Tensor:
        mine = full.chunk(self.parts)[self.expert]
        if self.inner is not None:
            mine = mine.chunk(2, dim=1 if name == "down" else 2)[self.inner]
        return mine.contiguous()

    def experts(self, dtype: torch.dtype = torch.float64) -> PackedExperts:
        found = whole_experts()
        for name in NAMES:
            mine = self.of(found.get_parameter(name).detach(), name)
            setattr(found, name, torch.nn.Parameter(mine.to(dtype)))
        return found


class Tokens(NamedTuple):
    """Tokens of a rank, and where they go; experts below `first` are never chosen."""

    x: Tensor
    weights: Tensor
    assigned: Assignments

    @staticmethod
    def drawn(seed: int, count: int, first: int, capacity: float | None, scaled: bool) -> "Tokens":
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, DIM, dtype=torch.float64, generator=generator)
        weights = torch.rand(count, TOP_K, dtype=torch.float64, generator=generator)
        scores = torch.rand(count, EXPERTS - first, generator=generator)
        assigned, load = assign(scores.topk(TOP_K).indices + first, EXPERTS, capacity)
        if scaled:
            factors = load_factors(len(assigned.slots), load.taken, load.ends, x.dtype)
            assigned = assigned._replace(factors=factors)
        return Tokens(x.requires_grad_(), weights.requires_grad_(), assigned)

    def again(self, dtype: torch.dtype = torch.float64) -> "Tokens":
        """The same, with gradients of their own."""
        x = self.x.detach().to(dtype).requires_grad_()
        return self._replace(x=x, weights=self.weights.detach().clone().requires_grad_())


def whole_experts() -> PackedExperts:
    experts = small_layer(experts=EXPERTS, top_k=TOP_K).experts
    assert isinstance(experts, PackedExperts)
    return experts


def expected(experts: PackedExperts, tokens: Tokens) -> Tensor:
    """The weighted sum over the choices that experts take, row by row."""
    x, weights, assigned = tokens
    y = [torch.zeros(DIM, dtype=torch.float64) for _ in range(len(x))]
    for row, slot in enumerate(assigned.slots.tolist()):
        expert, token = int((row >= assigned.ends).sum()), x[slot // TOP_K]
        gate, up, down = (experts.get_parameter(name)[expert] for name in NAMES)
        out = (F.silu(token @ gate) * (token @ up)) @ down
        if assigned.factors is not None:
            out = out.detach() + (out - out.detach()) * assigned.factors[row]
        y[slot // TOP_K] = y[slot // TOP_K] + weights.flatten()[slot] * out
    return torch.stack(y) if y else x * weights.sum(1, keepdim=True)


def compare(
    exchange: TokenDispatcher,
    held: Held,
    tokens: Tokens,
    what: str,
    dtype: torch.dtype = torch.float64,
) -> None:
    """The result and all gradients on this rank."""

    def close(found: Tensor | None, wanted: Tensor | None, name: str) -> None:
        assert found is not None and wanted is not None, f"{what}: no {name}"
        # In bf16: against the largest, as small ones are differences of large ones.
        size = wanted.abs().max().item() if wanted.numel() else 0.0
        near = 1e-9 if dtype == torch.float64 else 0.03 * size + 1e-6
        torch.testing.assert_close(
            found.double(), wanted, rtol=0, atol=near, msg=lambda m: f"{what}, {name}: {m}"
        )

    whole, ours = whole_experts(), held.experts(dtype)
    mine, other = tokens.again(dtype), tokens.again()
    y, wanted = exchange(ours, *mine)(), expected(whole, other)
    close(y, wanted, "result")
    slope = torch.linspace(-1, 1, DIM, dtype=torch.float64)
    (y.double().square() * slope).sum().backward()
    (wanted.square() * slope).sum().backward()
    close(mine.x.grad, other.x.grad, "tokens")
    close(mine.weights.grad, other.weights.grad, "weights")
    for name in NAMES:
        total = whole.get_parameter(name).grad
        total = torch.zeros_like(whole.get_parameter(name)) if total is None else total
        dist.all_reduce(total)
        grad = ours.get_parameter(name).grad
        assert grad is not None, "experts without rows have a gradient of zero"
        if held.copies is not None:
            dist.all_reduce(grad, group=held.copies)
        close(grad, held.of(total / held.alike, name), name)


def other_tokens(rank: int) -> None:
    """Each rank has tokens of its own, and a part of the experts."""
    # Anywhere, or nowhere but to the experts of the last ranks: the others get no rows.
    for first in (0, 2):
        for capacity, scaled in ((None, False), (0.6, False), (0.6, True)):
            what = f"from {first}, capacity {capacity}, scaled {scaled}"
            tokens = Tokens.drawn(rank, TOKENS[rank - world()], first, capacity, scaled)
            compare(
                AllToAllDispatcher(dist.group.WORLD),
                Held(world(), rank),
                tokens,
                what,
            )


def same_tokens(rank: int) -> None:
    """Pairs of neighbours hold the same tokens; of several pairs each has a part of the experts."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world(), 2)]
    sides = [dist.new_group(list(range(side, world(), 2))) for side in range(2)]
    pair, number = pairs[rank // 2], rank // 2
    peers = Peers(pair.group_name, rank % 2, 2)
    inner = AllToAllDispatcher(sides[rank % 2]) if world() > 2 else run_locally
    for capacity, scaled in ((None, False), (0.6, True)):
        tokens = Tokens.drawn(number, 5 - number, 0, capacity, scaled)
        halves = Held(world() // 2, number, inner=rank % 2, alike=2)
        compare(TensorParallelDispatcher(inner, peers, True), halves, tokens, "half of the width")
        copies = Held(world() // 2, number, copies=pair, alike=2)
        compare(TensorParallelDispatcher(inner, peers, False), copies, tokens, "half of the tokens")
    # Neighbours with the same tokens may divide the experts, too.
    tokens = Tokens.drawn(number, 5 - number, 0, 0.6, True)
    exchange = TensorParallelDispatcher(AllToAllDispatcher(dist.group.WORLD), peers, False)
    compare(
        exchange,
        Held(world(), rank, alike=2),
        tokens,
        "half of the tokens, all ranks",
    )


def deepep_config(buffer_size: int, sms: int, async_combine: bool) -> DeepEP:
    size = ByteSize(buffer_size)
    return resolve(DeepEP(buffer_size=size, sms=sms, async_combine=async_combine))


def by_deepep(rank: int) -> None:
    """DeepEP with a stand-in for its buffer; what it sends is bf16."""
    with pytest.raises(SetpointError, match="deep_ep cannot be loaded"):
        DeepEPDispatcher(dist.group.WORLD, EXPERTS, deepep_config(2**30, 20, False))
    sys.modules["deep_ep"] = stand_in_deepep
    small = DeepEPDispatcher(dist.group.WORLD, EXPERTS, deepep_config(1, 20, False))
    tokens = Tokens.drawn(rank, TOKENS[rank - world()], 0, None, False)
    with pytest.raises(SetpointError, match="precision.compute = bf16"):
        small(whole_experts(), *tokens)
    with pytest.raises(SetpointError, match="buffer_size: DeepEP needs"):
        small(whole_experts(), *tokens.again(torch.bfloat16))
    for overlaps in (False, True):
        exchange = DeepEPDispatcher(dist.group.WORLD, EXPERTS, deepep_config(2**20, 24, overlaps))
        assert stand_in_deepep.Buffer.sms == 24
        for capacity in (None, 0.6):
            before = stand_in_deepep.Event.waited
            tokens = Tokens.drawn(rank, TOKENS[rank - world()], 0, capacity, False)
            compare(exchange, Held(world(), rank), tokens, "DeepEP", torch.bfloat16)
            assert stand_in_deepep.Event.waited == before + overlaps


class Layer(torch.nn.Module):
    """Experts behind an exchange, as something that can be recomputed."""

    def __init__(
        self, exchange: TokenDispatcher, held: Held, tokens: Tokens, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.exchange, self.experts = exchange, held.experts(dtype)
        self.assigned = tokens.assigned

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        return self.exchange(self.experts, x, weights, self.assigned)().sin()


def recomputed(
    rank: int,
    exchange: TokenDispatcher,
    calls: list[str],
    counts: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    """Recomputation exchanges rows again, or takes those of the first pass; gradients are equal."""
    found: list[list[Tensor]] = []
    tokens = Tokens.drawn(rank, TOKENS[rank - world()], 0, 0.6, dtype == torch.float64)
    for save in (None, (), ("exchange",), ("exchange", "matmul")):
        layer = Layer(exchange, Held(world(), rank), tokens, dtype)
        if save is not None:
            recompute(layer, keep=partial(contexts, save, 1))
        mine = tokens.again(dtype)
        calls.clear()
        layer(mine.x, mine.weights).square().sum().backward()
        assert len(calls) == (counts[1] if save == () else counts[0]), (save, calls)
        gradients = [each.grad for each in (mine.x, mine.weights, *layer.parameters())]
        found.append([grad for grad in gradients if grad is not None])
    for others in found[1:]:
        assert all(map(torch.equal, others, found[0]))


def recomputed_layers(rank: int) -> None:
    calls: list[str] = []

    def counted(function: Any) -> Any:
        return lambda *given, **named: calls.append("") or function(*given, **named)

    kept: list[list[Tensor]] = []

    def noted(*result: Any) -> None:
        kept.append([each for each in result if isinstance(each, Tensor)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_to_all_single", counted(dist.all_to_all_single))
        # Counts, rows and weights there, results back; the gradients of the last three.
        recomputed(
            rank,
            AllToAllDispatcher(dist.group.WORLD),
            calls,
            (7, 11),
            torch.float64,
        )
        patch.setattr(dispatch, "save_result", noted)
        tokens = Tokens.drawn(rank, TOKENS[rank - world()], 0, None, False)
        Layer(
            AllToAllDispatcher(dist.group.WORLD),
            Held(world(), rank),
            tokens,
            torch.float64,
        )(tokens.x.double(), tokens.weights.double())
    # Of what comes back a sum for each token, and not a row for each choice.
    assert [len(each) for each in kept] == [1, 2, 1]
    assert kept[2][0].shape == tokens.x.shape
    with pytest.MonkeyPatch.context() as patch:
        for name in ("dispatch", "combine"):
            patch.setattr(stand_in_deepep.Buffer, name, counted_method(calls, name))
        deepep = DeepEPDispatcher(dist.group.WORLD, EXPERTS, deepep_config(2**20, 24, False))
        recomputed(rank, deepep, calls, (4, 6), torch.bfloat16)


def counted_method(calls: list[str], name: str) -> Any:
    real: Any = getattr(stand_in_deepep.Buffer, name)

    def method(self: object, *given: Any, **named: Any) -> Any:
        calls.append(name)
        return real(self, *given, **named)

    return method


def experts_are_divided(_: Path) -> None:
    rank = dist.get_rank()
    other_tokens(rank)
    same_tokens(rank)
    by_deepep(rank)
    recomputed_layers(rank)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_divide_the_experts(ranks: int) -> None:
    run_on_ranks(ranks, experts_are_divided)


class Packed(nn.Module):
    """Experts of two projections in one tensor each, as transformers has them."""

    def __init__(self) -> None:
        super().__init__()
        self._is_expert_parallel = False
        self.gate_up_proj = nn.Parameter(torch.zeros(2, 4, 8))
        self.down_proj = nn.Parameter(torch.zeros(2, 8, 4))


def test_a_compiled_model_of_transformers_divides_the_width_of_experts() -> None:
    dispatch = resolve(Parallel()).dispatch
    config = resolve(TransformerConfig(max_sequence_length=8))
    summed: list[tuple[str, ...]] = []
    for is_compiled in (False, True):
        model: Any = nn.ModuleDict({"experts": Packed()})
        peers = Peers("none", 0, 2)
        dispatcher = build_dispatcher(dispatch, config, None, peers, True, is_compiled)
        use_experts(model, dispatcher)
        summed.append(model.experts._summed)
    assert summed[0] and summed[0] == summed[1]
