"""Verdicts on steps, waits for the device, and messages of errors in an update."""

import errno
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.config import RunError, resolve
from setpoint.config.values.user_code import allow_imports
from setpoint.memory.usage import is_out_of_memory
from setpoint.precision.config import LossScale
from setpoint.precision.mixed_precision import LossScaler
from setpoint.train.build.components import build_components
from setpoint.train.engine import Engine, Rates, explain_oom, raise_named
from setpoint.train.loop import build_engine
from setpoint.train.rules.run_rules import memory_suggestions
from setpoint.train.run import train
from setpoint.train.verdict import Verdict

from ..support.snapshots import refused
from .small import events, small_job


class Reads(TorchDispatchMode):
    """Counts how often a number of a tensor is read on its own."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("flags", "ahead"), [((), True), (("parallel.torchft={}",), False)])
def test_each_step_is_waited_for_with_replica_groups(
    tmp_path: Path, flags: tuple[str, ...], ahead: bool
) -> None:
    """One that lost a group is taken again, which the host has to know before it goes on."""
    job = small_job(tmp_path, *flags, without=("accumulation",))
    assert build_engine(job, build_components(job)).is_ahead == ahead


OPTIMIZERS = {
    "adamw": (), "sgd": ("optimizer.momentum=0.9",), "lion": (), "muon": (),
    "schedule_free_adamw": (),
    "anyprecision_adamw": ("precision.params=bf16", "precision.compute=bf16"), "adafactor": (),
}  # fmt: skip


@pytest.mark.parametrize(
    ("optimizer", "scale"), [*((name, None) for name in OPTIMIZERS), ("adamw", 1024.0)]
)
def test_a_device_leaves_a_bad_step_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float | None, optimizer: str
) -> None:
    """As if it had not been there, to the bit, and no number is read for it; by what GPUs do."""
    monkeypatch.setattr("setpoint.optim.clip._is_within", lambda *_: False)
    for module in ("optimizer", "torch_optimizers"):
        monkeypatch.setattr(f"setpoint.optim.{module}.is_on_host", lambda _: False)
    moe = (
        "model.moe={experts: 4, top_k: 2, router: {type: sigmoid_top_k, bias_rate: 0.1}}",
        "model.dropout=0",
    )
    job = small_job(tmp_path, f"optimizer={optimizer}", *OPTIMIZERS[optimizer], *moe)

    def taken(*factors: float) -> tuple[list[Tensor], list[Verdict], int]:
        components, factor = build_components(job), [1.0]
        if scale is not None:
            components.scaler = LossScaler(
                "cpu", resolve(LossScale(initial=scale, growth_interval=99))
            )
        next(components.model.parameters()).register_hook(lambda gradient: gradient * factor[0])
        engine, step = Engine(job, components), components.feed.take()
        verdicts, reads = list[Verdict](), Reads()
        assert engine.is_ahead
        for factor[0] in factors:
            sums = engine.forward_backward(step, step.rank_total)
            with reads:
                finish = engine.update(sums, Rates(1e-3, 0.5))
            verdicts.append(finish().verdict)
        state = components.optimizer.state_dict()
        held = [value for each in state["state"].values() for value in each.values()]
        held += [value for group in state["param_groups"] for value in group.values()]
        numbers = [torch.as_tensor(x) for x in held if isinstance(x, int | float | Tensor)]
        return [*components.model.state_dict().values(), *numbers], verdicts, reads.count

    whole, verdicts, reads = taken(1.0, math.nan, 1.0)
    bad = Verdict.REFUSED if scale is None else Verdict.SKIPPED
    assert verdicts == [Verdict.TAKEN, bad, Verdict.TAKEN]
    # Adafactor counts in tensors that are on the host in any case.
    counts = len(list(build_components(job).model.parameters())) if optimizer == "adafactor" else 0
    assert reads == 3 * counts
    good, _, _ = taken(1.0, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(whole, good, strict=True))
    first, _, _ = taken(math.nan)
    assert all(
        torch.equal(a, b)
        for a, b in zip(first, build_components(job).model.state_dict().values(), strict=False)
    )


SHORT = ("duration=2 steps", "evaluation=null")
SPARSE = ("optimizer=import", "optimizer.target=torch.optim.SparseAdam", "optimizer.weight_decay=0")


class Unpooled(torch.nn.Module):
    """A model of the user's own whose backward pass alone cannot be deterministic."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(vocab_size, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up logits."""
        return Refusing.apply(self.table(tokens))


class Refusing(torch.autograd.Function):
    """Says in its backward pass what operations of CUDA say there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        indices = torch.zeros(1, 1, 4, 4, dtype=torch.int64)
        torch.nn.functional.max_unpool2d(torch.ones(1, 1, 4, 4), indices, kernel_size=[2, 2])
        return grads[0]


allow_imports(__name__)


def faults(path: Path) -> list[str]:
    runs = [found.parent for found in path.rglob("events.jsonl")]
    return [row["error"] for row in events(runs[0]) if row["event"] == "fault"]


class Misspelt(torch.optim.SGD):
    """Reads an attribute that it does not have."""

    def step(self, closure: Any = None) -> Any:
        return self.momentun


def test_a_bug_in_an_imported_optimizer(tmp_path: Path) -> None:
    own = ("optimizer=import", f"optimizer.target={__name__}.Misspelt")
    with refused(RunError):
        train(small_job(tmp_path, *SHORT, *own))


def test_a_backward_pass_without_a_deterministic_form(tmp_path: Path) -> None:
    own = ("model=import", f"model.target={__name__}.Unpooled")
    with refused(RunError) as caught:
        train(small_job(tmp_path, *SHORT, *own, "deterministic=true"))
    assert faults(tmp_path) == [str(caught.value)]
    assert not torch.are_deterministic_algorithms_enabled()
    assert train(small_job(tmp_path / "free", *SHORT, *own)).status == 0


def test_errors_that_explain_themselves_pass(tmp_path: Path) -> None:
    theirs = small_job(tmp_path, *SPARSE).optimizer
    for error in (
        torch.OutOfMemoryError("x"),
        RuntimeError("x does not have a deterministic implementation"),
        RunError("x"),
    ):
        with pytest.raises(type(error)) as caught:
            raise_named(error, theirs)
        assert caught.value is error


def test_too_little_memory_is_explained(tmp_path: Path) -> None:
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("unable to mmap from file </torch_1_2>: Cannot allocate memory (12)"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        torch.AcceleratorError("CUDA error: out of memory\nSearch for it", 2),
    ):
        assert is_out_of_memory(error), error
    with refused(RunError), explain_oom(small_job(tmp_path)):
        raise MemoryError


def test_what_helps_is_what_is_not_done_yet(tmp_path: Path) -> None:
    plain = memory_suggestions(small_job(tmp_path / "plain", "parallel.device=cpu"))
    assert [lever.split(",")[0] for lever in plain] == [
        "a smaller batch.micro_size (with a larger batch.accumulation)",
        "loss.type = chunked_cross_entropy",
        "memory.activation_checkpointing.type = full",
        "a shorter batch.sequence_length",
        "a smaller model",
    ]
    sparing = memory_suggestions(
        small_job(
            tmp_path / "sparing",
            "batch.micro_size=1",
            "loss=chunked_cross_entropy",
            "memory.activation_checkpointing=full",
        )
    )
    assert sparing[0].startswith("memory.activation_offload")
    assert not any("micro_size" in lever for lever in sparing)


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shape"), explain_oom(small_job(tmp_path)):
        raise RuntimeError("shape mismatch")
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("not enough memory"))
