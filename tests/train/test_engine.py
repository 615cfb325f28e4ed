"""What an engine does with a step, and how often it waits for the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.config import resolve
from setpoint.precision.config import LossScale
from setpoint.precision.mixed_precision import LossScaler
from setpoint.train.build.components import Components, build_components
from setpoint.train.engine import Engine, Rates
from setpoint.train.loop import build_engine
from setpoint.train.verdict import StepResult, Verdict

from .small import small_job


class Reads(TorchDispatchMode):
    """Counts how often a number of a tensor is read on its own."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def finished(
    folder: Path, scale: float | None = None, factor: float = 1.0, *flags: str
) -> tuple[StepResult, Components, Reads]:
    """One step, whose first gradient is multiplied by a factor."""
    job = small_job(folder, "model.dropout=0", *flags)
    components = build_components(job)
    if scale is not None:
        components.scaler = LossScaler("cpu", resolve(LossScale(initial=scale)))
    next(components.model.parameters()).register_hook(lambda gradient: gradient * factor)
    engine, step = Engine(job, components), components.feed.take()
    sums = engine.forward_backward(step, step.rank_total)
    with Reads() as reads:
        return engine.update(sums, Rates(1e-3, 0.0))(), components, reads


def weights(components: Components) -> list[Tensor]:
    return [p.detach().clone() for p in components.model.parameters()]


@pytest.mark.parametrize(
    ("scale", "factor", "verdict"),
    [
        (None, 1.0, Verdict.TAKEN),
        (1024.0, 1.0, Verdict.TAKEN),
        (1024.0, math.inf, Verdict.SKIPPED),
        (None, math.inf, Verdict.REFUSED),
    ],
)
def test_verdicts(tmp_path: Path, scale: float | None, factor: float, verdict: Verdict) -> None:
    before = weights(build_components(small_job(tmp_path, "model.dropout=0")))
    ended, components, _ = finished(tmp_path, scale, factor)
    assert ended.verdict is verdict
    same = [torch.equal(a, b) for a, b in zip(weights(components), before, strict=True)]
    assert not any(same) if verdict is Verdict.TAKEN else all(same)
    assert components.scaler.skipped == (verdict is Verdict.SKIPPED)
    assert math.isfinite(ended.grad_norm) == (factor == 1)


@pytest.mark.parametrize(("flags", "ahead"), [((), True), (("parallel.torchft={}",), False)])
def test_each_step_is_waited_for_with_replica_groups(
    tmp_path: Path, flags: tuple[str, ...], ahead: bool
) -> None:
    """One that lost a group is taken again, which the host has to know before it goes on."""
    job = small_job(tmp_path, *flags, without=("accumulation",))
    assert build_engine(job, build_components(job)).is_ahead == ahead


OPTIMIZERS = {
    "adamw": (),
    "sgd": ("optimizer.momentum=0.9",),
    "lion": (),
    "muon": (),
    "schedule_free_adamw": (),
    "anyprecision_adamw": ("precision.params=bf16", "precision.compute=bf16"),
    "adafactor": (),
}


@pytest.mark.parametrize("scale", [None, 1024.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
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
        engine, step, verdicts, reads = (
            Engine(job, components),
            components.feed.take(),
            [],
            Reads(),
        )
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
