from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from setpoint.config import resolve
from setpoint.memory.activation_offload import Offload, SavedTensors, offload_activations
from setpoint.memory.config import (
    ActivationOffload,
    CheckpointedParts,
    CheckpointingConfig,
    Full,
    Operators,
)
from setpoint.model.build import layers_of
from setpoint.shapes.placed import whole_of
from setpoint.units import ByteSize

from ..model.families import sparse
from ..model.small import VOCAB, small_model
from ..support.cases import pairs
from ..support.ranks import run_on_ranks
from ..train.small import loop_of, small_job
from .meter import Meter
from .passes import CASES, DROPOUT, assert_same, run

CPU = torch.device("cpu")


class Counting(Offload):
    """Knows what travelled."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.out: list[int] = []
        self.fetched = 0

    def to_host(self, data: Tensor) -> Tensor:
        self.out.append(data.numel())
        return super().to_host(data)

    def prefetch(self, data: Tensor) -> tuple[Tensor, Any]:
        self.fetched += 1
        return super().prefetch(data)


def saved_tensors(limit: int = 0, smallest: int = 0) -> tuple[SavedTensors, Counting]:
    offload = Counting()
    return SavedTensors(offload, CPU, limit, smallest), offload


def offloaded(
    limit: int = 0, smallest: int = 0, policy: CheckpointingConfig | None = None, **changes: Any
) -> tuple[nn.Module, Counting]:
    model = small_model(**changes)
    if policy is not None:
        resolve(policy).build(layers=layers_of(model))
    config = resolve(ActivationOffload(limit=ByteSize(limit), smallest=ByteSize(smallest)))
    offload_activations(config, model, CPU)
    forward: Any = model.forward
    saved: SavedTensors = forward.args[0]
    saved.offload = Counting()
    return model, saved.offload


@pytest.mark.parametrize(
    ("name", "precision", "limit"), pairs(CASES, [None, torch.bfloat16], [0, 100_000])
)
def test_equal_to_the_last_bit(name: str, precision: torch.dtype | None, limit: int) -> None:
    case = {**CASES[name], **DROPOUT}
    plain = run(small_model(**case), precision, metered=False, passes=2)
    model, offload = offloaded(limit, **case)
    assert_same(run(model, precision, metered=False, passes=2), plain)
    assert offload.out


@pytest.mark.parametrize("policy", [Full(), Full(reentrant=True), CheckpointedParts(), Operators()])
def test_together_with_checkpointing(policy: CheckpointingConfig) -> None:
    case = {**sparse(), **DROPOUT}
    plain = run(small_model(**case), metered=False)
    model, offload = offloaded(policy=policy, **case)
    assert_same(run(model, metered=False), plain)
    everything, all_out = offloaded(**case)
    run(everything, metered=False)
    assert 0 < sum(offload.out) < sum(all_out.out)


def test_the_limit_is_what_stays() -> None:
    sizes = {}
    for limit in (0, 50_000, 200_000, 10**9):
        model, offload = offloaded(limit, layers=4)
        run(model, metered=False)
        sizes[limit] = sum(offload.out)
    assert sizes[0] - 50_000 <= sizes[50_000] < sizes[0]
    assert sizes[0] - 200_000 <= sizes[200_000] < sizes[50_000]
    assert sizes[10**9] == 0


def test_parameters_and_small_tensors_stay() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    x = torch.randn(2, 64)
    # The inputs of both, and no weights; none where they are small.
    for smallest, out in ((0, [x.nbytes, x.nbytes]), (x.nbytes + 1, [])):
        saved, offload = saved_tensors(smallest=smallest)
        saved.start([*model.parameters(), *model.buffers()])
        with saved_tensors_hooks(saved.pack, saved.unpack):
            model(x).sum().backward()
        assert offload.out == out


def test_the_newest_stay_and_come_first() -> None:
    saved, offload = saved_tensors(limit=2 * 400)
    packed = [saved.pack(torch.full((100,), float(i))) for i in range(5)]
    assert offload.out == [400, 400, 400]
    assert [each.storage.host is None for each in packed] == [False, False, False, True, True]
    for i in reversed(range(5)):
        assert torch.equal(saved.unpack(packed[i]), torch.full((100,), float(i)))
        if i == 2:
            assert offload.fetched == 3  # those before it are under way
    assert offload.fetched == 3


def test_views_and_repetitions_travel_once() -> None:
    saved, offload = saved_tensors()
    x = torch.randn(6, 8)
    views = [x, x, x.t(), x[1:3], x[:, ::2], x.view(2, 3, 8).transpose(0, 2)]
    expected = [view.clone() for view in views]
    packed = [saved.pack(view) for view in views]
    assert offload.out == [x.nbytes]
    here = StorageWeakRef(x.untyped_storage())
    del x, views
    assert here.expired()
    for one, other in zip(packed, expected, strict=True):
        back = saved.unpack(one)
        assert torch.equal(back, other)
    assert offload.fetched == 1


def test_memory_that_is_given_to_another_tensor_is_not_taken_for_the_first() -> None:
    saved, _ = saved_tensors()
    # Each is freed at once, and the next one may lie where it was.
    packed = [saved.pack(torch.full((1000,), float(i))) for i in range(50)]
    for i, one in enumerate(packed):
        assert float(saved.unpack(one)[0]) == i


def test_a_change_in_place_is_refused_or_comes_too_late() -> None:
    saved, _ = saved_tensors(limit=10**6)
    x = torch.randn(9)
    packed = saved.pack(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        saved.unpack(packed)
    saved, _ = saved_tensors()
    before = x.clone()
    packed = saved.pack(x)
    x.add_(1)
    after = saved.pack(x)
    assert torch.equal(saved.unpack(packed), before)
    assert torch.equal(saved.unpack(after), x)
    small, _ = saved_tensors(smallest=10**6)
    packed = small.pack(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        small.unpack(packed)


def test_nothing_is_left_after_the_backward_pass() -> None:
    model, _ = offloaded(limit=10_000)
    saved = model.forward.args[0]  # pyright: ignore[reportFunctionMemberAccess]
    run(model, metered=False)
    assert not saved.known
    saved.start([])
    assert not saved.on_device and saved.bytes_on_device == 0


def test_without_gradients_nothing_travels() -> None:
    model, offload = offloaded()
    tokens = torch.arange(12).view(2, 6) % VOCAB
    with torch.no_grad():
        assert torch.equal(model(tokens), small_model()(tokens))
    assert not offload.out
    assert list(model.state_dict()) == list(small_model().state_dict())


RANKS = 4
ON_RANKS = (
    "duration=1 step", "model.layers=2", "evaluation=null", "batch.micro_size=1",
    "batch.accumulation=1", "precision.compute=bf16", f"parallel.world_size={RANKS}",
    "parallel.shard=4", "parallel.expert=2",
    "model.moe={experts: 4, top_k: 2, shared_experts: 1, load_sequences: 1}",
)  # fmt: skip
# Counts, rows, weights of choices and results; gradients of the last three; in each of two layers.
ONCE, AGAIN = 4, 3
# Grouped products with gate, up and down; two gradients of each. Only messages read that with down.
CALLS = {
    "null": (ONCE + AGAIN, 9),
    "full": (2 * ONCE + AGAIN, 12),
    "{type: operators, save: [matmul]}": (2 * ONCE + AGAIN, 9),
    "{type: operators, save: [exchange]}": (ONCE + AGAIN, 11),
    "{type: operators, save: [matmul, attention, exchange]}": (ONCE + AGAIN, 9),
}


def all_to_alls_are_kept(folder: Path) -> None:
    """Of experts on four ranks, two of each, which FSDP2 gathers within recomputed layers."""
    expected: dict[str, Tensor] = {}
    for policy, calls in CALLS.items():
        loop = loop_of(small_job(folder, *ON_RANKS, f"memory.activation_checkpointing={policy}"))
        with Meter() as meter:
            loop.run()
        counted = meter.calls["c10d::alltoall_base_"], meter.calls["_grouped_mm"]
        assert counted == (2 * calls[0], 2 * calls[1]), (policy, counted)
        state = loop.components.model.state_dict()
        weights = {name: whole_of(value) for name, value in state.items()}
        expected = expected or weights
        for name, weight in weights.items():
            assert torch.equal(weight, expected[name]), (policy, name)


@pytest.mark.slow
def test_all_to_alls_are_kept_and_weights_are_equal_to_the_bit() -> None:
    run_on_ranks(RANKS, all_to_alls_are_kept)
