"""Every choice of number formats takes effect in a run, or is refused."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import ConfigError
from setpoint.optim.elementwise import AnyPrecisionAdamW
from setpoint.precision.mixed_precision import MasterWeights
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.engine import Engine
from setpoint.train.loop import Loop
from setpoint.train.run import train
from setpoint.train.run_state import restore

from ..checkpoint.stored import load
from ..precision.gpu_stand_in import gpu_stand_in
from .effects.observations import updates
from .small import assert_same_run, loop_of, rows, small_job, states, train_rows

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
OPTIMIZERS = {
    "adamw": ("optimizer=adamw",),
    "sgd": ("optimizer=sgd", "optimizer.lr=0.5"),
    "lion": ("optimizer=lion",),
    "muon": ("optimizer=muon",),
    "schedule_free": ("optimizer=schedule_free_adamw",),
    "anyprecision": ("optimizer=anyprecision_adamw",),
    "adafactor": ("optimizer=adafactor",),
    "import": ("optimizer={type=import, target=torch.optim.Adamax}",),
}
SHORT = ("precision.params=bf16", "precision.compute=bf16")
PLAIN = ("model.dropout=0", "evaluation=null", "checkpoint.every=never")


class Products(TorchDispatchMode):
    """Keeps the formats that matrix products are computed in."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
            self.seen |= {arg.dtype for arg in args if isinstance(arg, Tensor)}
        return func(*args, **(kwargs or {}))


def gradients(model: nn.Module) -> set[torch.dtype]:
    return {p.grad.dtype for p in model.parameters() if p.grad is not None}


@contextmanager
def before_updates(look: Callable[[], None]) -> Iterator[None]:
    """Look whenever all gradients of a step are added up, and nothing is done with them yet."""
    update = Engine.update

    def looked(self: Engine, *args: Any) -> Any:
        look()
        return update(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "update", looked)
        yield


@contextmanager
def watched(components: Components) -> Iterator[tuple[set[torch.dtype], set[torch.dtype]]]:
    """The formats of products in the model, and of the gradients that it adds up."""
    products, added = Products(), set[torch.dtype]()
    forward = components.objective.__class__.__call__

    def watch(self: Any, *args: Any) -> Any:
        with products:
            return forward(self, *args)

    def look() -> None:
        added.update(gradients(components.model))

    with pytest.MonkeyPatch.context() as patch, before_updates(look):
        patch.setattr(components.objective.__class__, "__call__", watch)
        yield products.seen, added


def looped(job: Job, components: Components) -> Loop:
    loop = loop_of(job, components=components)
    loop.run()
    return loop


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_formats_are_what_they_say(optimizer: str, tmp_path: Path) -> None:
    fields = ("params", "compute", "reduce", "master", "optimizer_state")
    stored, optional = ("fp32", "bf16"), ("null", "fp32", "bf16")
    combinations = 0
    for params, compute, reduce, master, state in product(
        stored, ("fp32", "bf16", "fp16"), optional, ("null", "fp32"), optional
    ):
        values = (params, compute, reduce, master, state)
        flags = [f"precision.{n}={v}" for n, v in zip(fields, values, strict=True)]
        legal = compute != "fp16" and (params == "fp32" or compute == "bf16")
        held = "fp32" if master == "fp32" else params
        free = optimizer in ("lion", "muon", "anyprecision")
        kept = state == "null" or free or (optimizer != "import" and state == held)
        if optimizer not in ("adamw", "lion") and not (legal and kept):
            continue  # what is refused does not depend on more than these two show
        try:
            job = small_job(tmp_path, *PLAIN, *OPTIMIZERS[optimizer], "duration=1 steps", *flags)
        except ConfigError as error:
            assert not (legal and kept), (flags, str(error))
            assert {problem.path for problem in error.problems} <= {
                f"precision.{n}" for n in fields
            }
            continue
        assert legal and kept, flags
        if reduce == params or state == held or params == master:
            continue  # what null means, too
        combinations += 1
        if optimizer not in ("adamw", "lion") and combinations % 3 != 1:
            continue  # one implementation keeps the formats of all optimizers
        components = build_components(job)
        start = [p.detach().clone() for p in components.model.parameters()]
        with watched(components) as (products, added):
            looped(job, components)
        assert {p.dtype for p in components.model.parameters()} == {DTYPES[params]}, flags
        assert {p.dtype for p in components.weights.parameters()} == {DTYPES[held]}, flags
        assert products == {DTYPES[compute]}, flags
        assert added == {DTYPES[params if reduce == "null" else reduce]}, flags
        states = {
            tensor.dtype
            for each in components.optimizer.state.values()
            for tensor in each.values()
            if isinstance(tensor, Tensor) and tensor.ndim
        }
        assert states == {DTYPES[held if state == "null" else state]}, flags
        assert not all(map(torch.equal, start, components.model.parameters())), flags
        assert all(p.isfinite().all() for p in components.model.parameters())
    assert combinations == (16 if optimizer in ("lion", "muon", "anyprecision") else 8)


def summed(folder: Path, accumulation: int, *flags: str, rounded: bool = False) -> Tensor:
    """The gradient of one update of 128 sequences, at weights that are perhaps rounded to bf16."""
    job = small_job(
        folder, *PLAIN, "duration=1 steps", "batch.global_size=128", "optimizer=sgd",
        f"batch.accumulation={accumulation}", *flags, without=("micro_size", "accumulation"),
    )  # fmt: skip
    components, seen = build_components(job), list[Tensor]()
    if rounded:
        with torch.no_grad():
            for p in components.model.parameters():
                p.copy_(p.bfloat16())

    def look() -> None:
        for p in components.model.parameters():
            assert p.grad is not None
            seen.append(p.grad.double().flatten())

    with before_updates(look):
        looped(job, components)
    return torch.cat(seen)


@pytest.mark.parametrize("stored", [SHORT, ()])
def test_sums_in_fp32_are_as_good_as_one_batch(stored: tuple[str, ...], tmp_path: Path) -> None:
    """Of 128 micro-batches: what adding up in bf16 loses is many times what all else does."""
    whole = summed(tmp_path, 1, rounded=bool(stored))
    short = summed(tmp_path, 128, *stored, *("precision.reduce=bf16",) * (not stored))
    exact = summed(tmp_path, 128, *stored, *("precision.reduce=fp32",) * bool(stored))
    errors = [float((each - whole).norm() / whole.norm()) for each in (short, exact)]
    # bf16 weights: each micro-batch's own gradient is rounded as well, which averages out.
    assert errors[0] > (3 if stored else 1000) * errors[1], errors
    assert errors[1] < (5e-3 if stored else 1e-5), errors


def losses(folder: Path, *flags: str) -> list[float]:
    """The losses of 60 updates that are small beside the weights."""
    job = small_job(
        folder, *PLAIN, "duration=60 steps", "optimizer.lr=1e-4", "schedule=constant",
        "schedule.warmup=0", "optimizer.weight_decay=0", "model.init_std=0.3",
        "model.dim=32", "batch.micro_size=8", "batch.accumulation=1", *flags,
    )  # fmt: skip
    return [result.loss for result in updates(job)]


def test_masters_follow_fp32_where_plain_bf16_stalls(tmp_path: Path) -> None:
    """Updates of 1e-4 are lost on weights of 0.3 in bf16, whose distance there is 1e-3."""
    mixed = losses(tmp_path, "precision.compute=bf16")
    master = losses(tmp_path, *SHORT, "precision.master=fp32", "precision.reduce=fp32")
    plain = losses(tmp_path, *SHORT)
    stochastic = losses(tmp_path, *SHORT, "optimizer=anyprecision_adamw")
    learned, with_master, without, at_random = (
        run[0] - sum(run[-5:]) / 5 for run in (mixed, master, plain, stochastic)
    )
    assert learned > 1.3, learned
    assert with_master == pytest.approx(learned, rel=0.01), (learned, with_master)
    assert at_random == pytest.approx(learned, rel=0.02), (learned, at_random)
    assert without < 0.2 * learned, (learned, without)


def test_masters_start_from_what_was_drawn(tmp_path: Path) -> None:
    exact = build_components(small_job(tmp_path))
    components = build_components(small_job(tmp_path, *SHORT, "precision.master=fp32"))
    assert isinstance(components.weights, MasterWeights)
    drawn = dict(exact.model.named_parameters())
    rounded = 0
    for name, held in components.weights.named_parameters():
        assert torch.equal(held, drawn[name]), name
        weight = dict(components.model.named_parameters())[name]
        assert torch.equal(weight, drawn[name].bfloat16())
        rounded += int((weight.float() != held).sum())
    assert rounded > 1000


def test_a_run_that_changes_its_formats_keeps_all_digits(tmp_path: Path) -> None:
    """With --accept: masters are filled from weights in fp32, and weights in fp32 from masters."""
    base = ("duration=4 steps", "optimizer.lr=1e-5", "checkpoint.every=last_step")
    masters, accept = (*SHORT, "precision.master=fp32"), ["precision"]
    for first, second in (((), masters), (masters, ())):
        run = tmp_path / f"run {len(first)}"
        before = train(small_job(tmp_path, *base, *first), directory=run).components
        exact = {name: p.detach().clone() for name, p in before.weights.named_parameters()}
        job = small_job(tmp_path, *base, *second)
        components = build_components(job)
        store = CheckpointStore(run / "checkpoints")
        checkpoint = load(store.root, "latest")
        assert checkpoint is not None
        restore(job, states(job, components), checkpoint)
        for name, held in components.weights.named_parameters():
            assert held.dtype == torch.float32
            assert torch.equal(held, exact[name]), name
        longer = ("schedule.horizon=4", "duration=5 steps")
        outcome = train(small_job(tmp_path, *base, *second, *longer), directory=run, accept=accept)
        assert outcome.final_position.step == 5


@pytest.mark.parametrize("optimizer", ["muon", "anyprecision"])
def test_states_follow_a_change_of_formats(optimizer: str, tmp_path: Path) -> None:
    base = ("checkpoint.every=last_step", "evaluation=null", *OPTIMIZERS[optimizer])
    longer = ("schedule.horizon=2", "duration=4 steps")
    for number, (first, second, dtype) in enumerate(
        (((), SHORT, torch.bfloat16), (SHORT, (), torch.float32))
    ):
        run = tmp_path / str(number)
        train(small_job(tmp_path, "duration=2 steps", *base, *first), directory=run)
        outcome = train(
            small_job(tmp_path, *longer, *base, *second), directory=run, accept=["precision"]
        )
        assert outcome.final_position.step == 4
        assert {
            value.dtype
            for state in outcome.components.optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor) and value.ndim
        } == {dtype}


def test_a_run_in_fp16_goes_on_bit_for_bit_and_counts_what_it_skips(tmp_path: Path) -> None:
    scale = f"precision.loss_scale={{initial={2.0**127}, backoff=1e-10, growth_interval=3}}"
    flags = ("duration=8 steps", "precision.compute=fp16", "parallel.device=cuda", scale)
    with gpu_stand_in():
        job = small_job(tmp_path, *flags)
        oracle = train(job, directory=tmp_path / "oracle").directory
        for until in (4, None):
            run = train(job, directory=tmp_path / "stopped", until=until).directory
    assert_same_run(run, oracle)
    found = train_rows(run)
    assert [row["skipped_steps"] for row in found] == [1, 2, 3, 4, 4, 4, 4, 4]
    # In JSON an infinite norm is a text.
    assert [row["grad_norm"] == "Infinity" or row["grad_norm"] == "NaN" for row in found[:5]] == [
        True, True, True, True, False]  # fmt: skip
    assert found[-1]["loss"] < found[0]["loss"]
    assert [row["loss_scale"] for row in found[-2:]] == pytest.approx([0.034, 0.034], rel=0.1)


def test_the_noise_of_rounding_is_that_of_the_seed_of_the_job(tmp_path: Path) -> None:
    """And not of a rank, whose generators are seeded otherwise: copies of a weight stay copies."""
    noise = []
    for seed in (3, 4):
        job = small_job(
            tmp_path / str(seed), f"seed={seed}", "optimizer=anyprecision_adamw", *SHORT
        )
        optimizer = build_components(job).optimizer
        assert isinstance(optimizer, AnyPrecisionAdamW)
        noise.append(optimizer.seed)
    assert noise == [3, 4]


def test_gradients_are_clipped_and_measured_without_their_scale(tmp_path: Path) -> None:
    norms = []
    for initial in (16.0, 1024.0):
        scale = f"precision.loss_scale={{initial={initial}}}"
        half = ("precision.compute=fp16", "parallel.device=cuda", "optimizer.clip_norm=0.1")
        with gpu_stand_in():
            job = small_job(tmp_path, *PLAIN, "duration=5 steps", *half, scale)
            run = train(job, directory=tmp_path / f"{initial:g}").directory
        norms.append([row["grad_norm"] for row in rows(run)])
    assert norms[1] == pytest.approx(norms[0], rel=1e-2)
    full = small_job(tmp_path, *PLAIN, "duration=5 steps", "optimizer.clip_norm=0.1")
    assert norms[0] == pytest.approx(
        [row["grad_norm"] for row in rows(train(full).directory)], rel=0.02
    )


def size(tensors: Iterable[Tensor | None]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@pytest.mark.parametrize(
    ("flags", "weights", "gradients", "state"),
    [
        (("precision.compute=bf16",), 4, 4, 8),
        (("precision.reduce=bf16",), 4, 2, 8),
        (SHORT, 2, 2, 4),
        ((*SHORT, "precision.reduce=fp32"), 2, 4, 4),
        ((*SHORT, "precision.master=fp32", "precision.reduce=fp32"), 2 + 4, 4, 8),
        ((*SHORT, "optimizer=anyprecision_adamw"), 2, 2, 4),
        ((*SHORT, "optimizer=anyprecision_adamw", "precision.optimizer_state=fp32"), 2, 2, 8),
    ],
)
def test_bytes_of_a_parameter(
    flags: tuple[str, ...], weights: int, gradients: int, state: int, tmp_path: Path
) -> None:
    """The table of docs/precision.md."""
    job = small_job(tmp_path, *PLAIN, "duration=1 steps", *flags)
    components, seen = build_components(job), list[int]()

    def look() -> None:
        seen.append(size(p.grad for p in components.model.parameters()))

    with before_updates(look):
        looped(job, components)
    count = sum(p.numel() for p in components.model.parameters())
    masters = components.weights.state().values()
    assert size([*components.model.parameters(), *masters]) == weights * count
    assert seen == [gradients * count]
    kept = [each for held in components.optimizer.state.values() for each in held.values()]
    assert size(each for each in kept if isinstance(each, Tensor) and each.ndim) == state * count
