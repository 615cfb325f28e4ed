"""The sections `optimizer` and `schedule`: optimizers and learning-rate schedules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, ClassVar, Literal

from setpoint.config import RUNTIME, ImportedComponent, Problem, check, dead, field
from setpoint.config.components.arguments import parameters_of, takes_parameter
from setpoint.optim.schedule.config import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    NoSchedule,
    Phase,
    Piecewise,
    Plateau,
    Polynomial,
    Rex,
    ScheduleConfig,
    Spanning,
    Wsd,
)
from setpoint.optim.section import (
    NOTHING_DECAYS,
    PATTERNS,
    FrozenSpan,
    Group,
    OptimizerConfig,
)
from setpoint.shapes.parameter import Kind, Parameter, pattern_problems

__all__ = [
    "SGD",
    "Adafactor",
    "AdamW",
    "AnyPrecisionAdamW",
    "Constant",
    "Cosine",
    "FrozenSpan",
    "Group",
    "ImportedOptimizer",
    "InverseSqrt",
    "Kind",
    "Linear",
    "Lion",
    "Muon",
    "NoSchedule",
    "OptimizerConfig",
    "Parameter",
    "Phase",
    "Piecewise",
    "Plateau",
    "Polynomial",
    "Rex",
    "ScheduleConfig",
    "ScheduleFreeAdamW",
    "Spanning",
    "Wsd",
]

Implementation = Literal["auto", "fused", "foreach", "loop"]


class CautiousDecay(OptimizerConfig):
    """Optimizers whose decoupled weight decay may follow the signs of their updates."""

    cautious_weight_decay: bool = False
    """Cautious weight decay (Chen et al., 2025): decay only weights that the update moves towards 0
    or leaves where they are."""

    @dead("cautious_weight_decay")
    def _cautious_weight_decay_is_dead(self) -> str | None:
        return None if self.weight_decay else NOTHING_DECAYS


class AdamW(CautiousDecay, type="adamw", owner="setpoint.optim.torch_optimizers:AdamW.from_config"):
    """AdamW (Loshchilov and Hutter, 2019)."""

    betas: tuple[float, float] = field(default=(0.9, 0.95), item_ge=0, item_lt=1)
    """Adam betas (beta1, beta2): decay rates of the running means of the gradient and of its
    square."""

    eps: float = field(default=1e-8, gt=0, lt=inf)
    """Adam epsilon: added to the denominator, the root of the mean squared gradient."""

    amsgrad: bool = False
    """AMSGrad (Reddi et al., 2018): divide by the root of the maximum so far of the mean squared
    gradient."""

    implementation: Implementation = field(default="auto", role=RUNTIME)
    """PyTorch's implementation. fused: one kernel; foreach: each operation over all tensors; loop:
    tensor by tensor; auto: fused where supported."""


class SGD(OptimizerConfig, type="sgd", owner="setpoint.optim.torch_optimizers:SGD.from_config"):
    """Stochastic gradient descent with momentum (Sutskever et al., 2013)."""

    weight_decay: float = field(default=0.0, ge=0, lt=inf)
    """L2 weight decay (not decoupled): weight_decay * weight is added to the gradient, as in
    PyTorch's SGD."""

    momentum: float = field(default=0.9, ge=0, lt=1)
    """Momentum: decay rate of the momentum buffer, a running sum of gradients; 0: plain SGD."""

    dampening: float = field(default=0.0, ge=0, lt=1)
    """Momentum dampening: each gradient enters the momentum buffer with weight 1 - dampening."""

    nesterov: bool = False
    """Nesterov momentum: step along gradient + momentum * momentum buffer."""

    implementation: Implementation = field(default="auto", role=RUNTIME)
    """PyTorch's implementation. fused: one kernel; foreach: each operation over all tensors; loop:
    tensor by tensor; auto: fused where supported."""

    @property
    def keeps_state(self) -> bool:
        """See `OptimizerConfig.keeps_state`: the running sum, if there is one."""
        return self.momentum > 0

    @check
    def _check_momentum(self) -> Iterator[Problem]:
        if self.nesterov and (not self.momentum or self.dampening):
            yield Problem(
                "nesterov",
                "needs momentum without dampening",
                valid=("false",),
                also=("momentum", "dampening"),
            )
        if self.dampening and not self.momentum:
            yield Problem(
                "dampening",
                "has no effect: without momentum there is no running sum",
                valid=("0",),
                also=("momentum",),
            )


class Lion(CautiousDecay, type="lion", owner="setpoint.optim.lion:Lion.from_config"):
    """Lion (Chen et al., 2023): sign of the momentum."""

    state_formats: ClassVar[bool] = True

    lr: float = field(default=1e-4, gt=0, lt=inf, tags=("learning_rate",))
    """Peak learning rate, three to ten times below AdamW's; the schedule multiplies it."""

    betas: tuple[float, float] = field(default=(0.9, 0.99), item_ge=0, item_lt=1)
    """Lion betas (beta1, beta2): weight of the momentum buffer in the step, and its decay rate."""


class Muon(CautiousDecay, type="muon", owner="setpoint.optim.muon:Muon.from_config"):
    """Muon for the matrices between layers (Jordan et al., 2024), AdamW for all other parameters.

    Embeddings, the output, routers, norms, biases, vectors and convolutions are AdamW's.
    """

    state_formats: ClassVar[bool] = True
    patterns: ClassVar[dict[str, tuple[Kind, ...] | None]] = {
        "no_decay_patterns": None,
        "adamw_patterns": ("matrix",),
    }
    whole: ClassVar[tuple[str, ...]] = ("adamw_lr", "adamw_patterns")
    read_by: ClassVar[dict[str, tuple[str, ...]]] = {
        "muon": ("momentum", "nesterov", "steps", "adjust_lr", "cautious_weight_decay"),
        "adamw": ("betas", "eps", "cautious_weight_decay"),
    }

    lr: float = field(default=2e-2, gt=0, lt=inf, tags=("learning_rate",))
    """Peak learning rate of the matrices; the schedule multiplies it by its factor at each step."""

    momentum: float = field(default=0.95, ge=0, lt=1)
    """Momentum: decay rate of the momentum buffer, a running mean of gradients."""

    nesterov: bool = True
    """Nesterov momentum: mix the gradient into the momentum buffer once more before it is
    orthogonalized."""

    steps: int = field(default=5, ge=1, le=20)
    """Newton-Schulz iterations (ns_steps) of the orthogonalization."""

    adjust_lr: Literal["original", "match_rms_adamw"] = "original"
    """Learning rate factor of a matrix with A outputs and B inputs. original: sqrt(max(1, A / B));
    match_rms_adamw: 0.2 * sqrt(max(A, B)), for AdamW's lr and weight decay."""

    adamw_lr: float | None = field(default=None, gt=0, lt=inf)
    """Peak learning rate of the parameters trained by AdamW; null: lr."""

    adamw_patterns: tuple[str, ...] = ()
    """Regular expressions searched in parameter names: matrices that match are trained by AdamW."""

    betas: tuple[float, float] = field(default=(0.9, 0.95), item_ge=0, item_lt=1)
    """Adam betas (beta1, beta2) of the parameters trained by AdamW."""

    eps: float = field(default=1e-8, gt=0, lt=inf)
    """Adam epsilon of the parameters trained by AdamW."""

    @dead("nesterov", holds=(False,))
    def _nesterov_is_dead(self) -> str | None:
        return None if self.momentum else "without momentum there is nothing to look ahead by"

    @check
    def _check_patterns(self) -> Iterator[Problem]:
        for index, pattern in enumerate(self.adamw_patterns):
            yield from pattern_problems(f"adamw_patterns.{index}", pattern, PATTERNS)

    def treatment(self, parameter: Parameter) -> dict[str, Any]:
        """See `OptimizerConfig.treatment`: which of the two algorithms a parameter is for."""
        wanted = any(re.search(each, parameter.name) for each in self.adamw_patterns)
        if parameter.kind == "matrix" and len(parameter.shape) >= 2 and not wanted:
            turned = {"inputs_first": True} if parameter.inputs_first else {}
            return {"algorithm": "muon", **turned}
        rate = 1.0 if self.adamw_lr is None else self.adamw_lr / self.lr
        return {"algorithm": "adamw", "lr_multiplier": rate}

    def idle(self, parameters: Sequence[Parameter]) -> Iterator[Problem]:
        """See `OptimizerConfig.idle`: what Muon reads without a matrix of its own."""
        if any(self.treatment(each)["algorithm"] == "muon" for each in parameters):
            return
        matrices = sum(each.kind == "matrix" for each in parameters)
        yield Problem(
            "adamw_patterns",
            f"leaves Muon nothing: of {len(parameters)} parameters that are trained "
            f"{matrices or 'none'} {'are' if matrices > 1 else 'is'} of kind matrix"
            + (", and AdamW gets all of these" if matrices else ""),
            hint="Use optimizer.type = adamw, or leave Muon some matrices.",
        )


class ScheduleFreeAdamW(
    OptimizerConfig,
    type="schedule_free_adamw",
    owner="setpoint.optim.schedule_free:ScheduleFreeAdamW.from_config",
):
    """Schedule-free AdamW (Defazio et al., 2024); evaluated and saved at the averaged point."""

    weight_decay: float = field(default=0.1, ge=0, lt=inf)
    """Decoupled weight decay at the point y where gradients are computed: lr * weight_decay * y is
    subtracted at each step."""

    betas: tuple[float, float] = field(default=(0.9, 0.999), item_gt=0, item_lt=1)
    """Betas (beta1, beta2): weight of the average x in the point y where gradients are computed,
    and decay rate of the mean squared gradient."""

    eps: float = field(default=1e-8, gt=0, lt=inf)
    """Adam epsilon: added to the denominator, the root of the mean squared gradient."""

    lr_power: float = field(default=2.0, ge=0, lt=inf)
    """weight_lr_power: a step's weight in the average is the maximum learning rate so far to this
    power."""

    step_power: float = field(default=0.0, ge=0, lt=inf)
    """r of schedule-free: a step's weight in the average is multiplied by its number to this power;
    0: uniform."""


class AnyPrecisionAdamW(
    CautiousDecay,
    type="anyprecision_adamw",
    owner="setpoint.optim.anyprecision:AnyPrecisionAdamW.from_config",
):
    """AdamW with weights and optimizer state in bf16 where precision says so."""

    state_formats: ClassVar[bool] = True
    draws: ClassVar[bool] = True

    betas: tuple[float, float] = field(default=(0.9, 0.95), item_ge=0, item_lt=1)
    """Adam betas (beta1, beta2): decay rates of the running means of the gradient and of its
    square."""

    eps: float = field(default=1e-8, gt=0, lt=inf)
    """Adam epsilon: added to the denominator, the root of the mean squared gradient."""

    rounding: Literal["nearest", "stochastic"] = "stochastic"
    """Rounding of bf16 weights and optimizer state; stochastic: up or down at random, so that small
    changes are kept on average."""


class Adafactor(
    OptimizerConfig, type="adafactor", owner="setpoint.optim.torch_optimizers:Adafactor.from_config"
):
    """Adafactor (Shazeer and Stern, 2018): factored second moments, one mean per row and column."""

    lr: float = field(default=1e-2, gt=0, lt=inf, tags=("learning_rate",))
    """Peak relative learning rate: a step changes a weight tensor by min(lr, 1 / sqrt(step)) times
    its root mean square (RMS), at least eps2."""

    weight_decay: float = field(default=0.0, ge=0, lt=inf)
    """Decoupled weight decay: weights are multiplied by 1 - lr * weight_decay at each step."""

    beta2_decay: float = field(default=-0.8, lt=0, ge=-1)
    """Decay exponent of beta2 (decay_rate): beta2 = 1 - step ^ beta2_decay."""

    eps1: float | None = field(default=None, gt=0, lt=inf)
    """Epsilon 1: minimum of the mean squared gradient; null: machine epsilon of the dtype
    (torch.finfo(dtype).eps)."""

    eps2: float = field(default=1e-3, ge=0, lt=inf)
    """Epsilon 2: minimum of the weights' root mean square (RMS) that a step is scaled by."""

    clip_threshold: float = field(default=1.0, ge=1, lt=inf)
    """Clipping threshold (d): maximum root mean square (RMS) of a step before it is scaled."""


class ImportedOptimizer(
    OptimizerConfig, ImportedComponent, type="import", owner="setpoint.optim.build:build_imported"
):
    """Any torch.optim.Optimizer by its import path; other keys are its arguments."""

    allowed_modules = ("torch.optim",)
    runtime_arguments = ("*",)

    weight_decay: float = field(default=0.0, ge=0, lt=inf)
    """Weight decay, passed to the target, which defines it: decoupled or added to the gradient."""

    def _mistakes(self) -> Iterator[Problem]:
        found = list(super()._mistakes())
        yield from found
        if any(problem.path == "target" for problem in found):
            return
        parameters = parameters_of(self.target.load())
        if self.groups:
            from setpoint.optim.options import option_problems

            yield from option_problems(self)
        if parameters is not None and not takes_parameter(parameters, "lr"):
            yield Problem(
                "target", "takes no lr, so that neither optimizer.lr nor the schedule would count"
            )
        if parameters is None or takes_parameter(parameters, "weight_decay"):
            return
        if self.weight_decay:
            yield Problem(
                "weight_decay",
                f"has no effect: {self.target} takes none",
                valid=("0",),
                hint="Set it to 0.",
            )
        for index, group in enumerate(self.groups):
            if group.weight_decay_multiplier not in (None, 0, 1):
                yield Problem(
                    f"groups.{index}.weight_decay_multiplier",
                    f"has no effect: {self.target} takes no weight_decay",
                    hint="Remove it.",
                )
