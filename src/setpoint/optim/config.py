"""The section `optimizer`: optimizers, parameter groups and frozen parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from setpoint.config import (
    RUNTIME,
    Builds,
    Config,
    ConfigError,
    FieldInfo,
    Free,
    ImportedComponent,
    Invalid,
    Origin,
    Problem,
    Rule,
    dead,
    derive,
    derived,
    did_you_mean,
    field,
    resolve,
    rule,
)
from setpoint.config.component_sections import (
    converted_argument,
    parameters_of,
    takes_parameter,
    wrong_arguments,
)
from setpoint.config.values.origin import DEFAULT
from setpoint.shapes.parameter import Kind, Parameter
from setpoint.shapes.patterns import pattern_problems
from setpoint.units import Length

if TYPE_CHECKING:
    from torch.optim import Optimizer  # noqa: F401 - a text names it

PATTERNS = (r"\.norm\.", "embed")
"""Valid values in place of an empty pattern."""
NOTHING_DECAYS = "nothing decays with weight_decay = 0"


class Group(Config):
    """Parameter group with its own settings."""

    pattern: str
    """Regular expression searched in full parameter names; a parameter belongs to the first group
    that matches."""

    lr_multiplier: float = field(default=1.0, ge=0, lt=inf)
    """Learning rate multiplier of the group."""

    weight_decay_multiplier: float | None = field(default=None, ge=0, lt=inf)
    """Weight decay multiplier of the group, overriding no_decay; null: no_decay decides."""

    options: Free = field(factory=Free)
    """Other optimizer options for this group, by name, such as {betas = [0.9, 0.99]}."""

    @property
    def changes_nothing(self) -> bool:
        """True if the group has no effect on its parameters."""
        same = self.lr_multiplier == 1.0 and self.weight_decay_multiplier is None
        return same and not self.options.dump()

    @rule
    def _check_pattern(self) -> Iterator[Problem]:
        yield from pattern_problems("pattern", self.pattern, PATTERNS)


class FrozenSpan(Config):
    """Parameters that are frozen during part of the run."""

    pattern: str
    """Regular expression searched in parameter names."""

    start: Length = Length(0)
    """Start of the freeze, in steps, tokens, epochs or run time."""

    stop: Length | None = None
    """End of the freeze; null: none."""

    def holds(self, reached: Callable[[str], float]) -> bool:
        """True if the parameters are frozen."""
        if self.stop is not None and reached(self.stop.unit) >= self.stop.count:
            return False
        return reached(self.start.unit) >= self.start.count

    @rule
    def _check_span(self) -> Iterator[Problem]:
        yield from pattern_problems("pattern", self.pattern, PATTERNS)
        for name, length in (("start", self.start), ("stop", self.stop)):
            if length is not None and length.share is not None:
                yield Problem(
                    name,
                    f"{length} of a run would change with its duration, which may grow",
                    valid=("100 steps", "1e9 tokens", "0.5 epochs", "10 min"),
                )
        start, stop = self.start, self.stop
        if stop is None and not start:
            yield Problem(
                "stop",
                "is null with start = 0: patterns for the whole run belong in frozen",
                also=("start",),
                hint="Move the pattern to frozen, or give start or stop.",
            )
        elif (
            stop is not None
            and (stop.unit == start.unit or not stop)
            and (stop.count <= start.count)
        ):
            yield Problem(
                "stop",
                f"{stop} is not after start = {start}",
                also=("start",),
                hint="Nothing would be frozen.",
            )


RULES = (
    Rule("setpoint.optim.grouping:group_problems",
         "Parameter groups have an effect, and valid options",
         when=lambda optimizer: bool(optimizer.groups)),
)  # fmt: skip


class OptimizerConfig(Builds["Optimizer"], rules=RULES):
    """Base of all optimizer sections, with the fields they share."""

    state_formats: ClassVar[bool] = False
    """True if state can have another dtype than the weights."""

    draws: ClassVar[bool] = False
    """True if it draws random numbers, and accepts a `seed`, the same on all ranks."""

    patterns: ClassVar[dict[str, tuple[Kind, ...] | None]] = {"no_decay_patterns": None}
    """Fields with patterns on names, apart from groups, with the kinds of parameters that they
    select from; None: all."""

    whole: ClassVar[tuple[str, ...]] = ()
    """Fields of a variant that apply to all groups together, and are not options of a group."""

    read_by: ClassVar[dict[str, tuple[str, ...]]] = {}
    """If `treatment` assigns one of several algorithms: the options that each reads, by name."""

    lr: float = field(default=3e-4, gt=0, lt=inf, tags=("learning_rate",), per_variant=True)
    """Peak learning rate; the schedule multiplies it by its factor at each step."""

    weight_decay: float = field(default=0.1, ge=0, lt=inf)
    """Decoupled weight decay: lr * weight_decay * weight is subtracted at each step, except for the
    kinds in no_decay."""

    no_decay: tuple[Kind, ...] = field(factory=lambda: ("norm", "bias", "vector"))
    """Parameter kinds without weight decay. norm includes a norm's bias; matrix, vector and tensor
    (3 or more dimensions) cover parameters of no other kind."""

    no_decay_patterns: tuple[str, ...] = ()
    """Regular expressions searched in parameter names; matching parameters have no weight decay."""

    groups: tuple[Group, ...] = ()
    """Parameter groups with their own settings, by patterns on parameter names."""

    frozen: tuple[str, ...] = ()
    """Frozen parameters: regular expressions searched in parameter names. Matching parameters have
    no gradients, master weights or optimizer state."""

    frozen_spans: tuple[FrozenSpan, ...] = ()
    """Parameters frozen for part of the run: their weights and optimizer state do not change, and
    their gradients are not in the norm."""

    clip_norm: float | None = derived(gt=0)
    """Gradient clipping by global norm (max_grad_norm); null: off, but the norm is still logged.
    Default: 1, or null if clip_value is given."""

    clip_value: float | None = field(default=None, gt=0, lt=inf)
    """Gradient clipping of each element to [-clip_value, clip_value]; cannot be combined with
    clip_norm; null: off."""

    @property
    def keeps_state(self) -> bool:
        """True if the optimizer keeps state as large as the weights."""
        return True

    @property
    def depends_on_parameters(self) -> bool:
        """True if it depends on the model's parameters whether settings have an effect."""
        return bool(self.groups or self.frozen or self.frozen_spans) or any(
            getattr(self, field) for field in self.patterns
        )

    @derive("clip_norm")
    def _derive_clip_norm(self) -> float | None:
        return 1.0 if self.clip_value is None else None

    @rule
    def _check_clipping(self) -> Iterator[Problem]:
        if self.clip_value is not None and self.clip_norm is not None:
            yield Problem(
                "clip_value",
                "contradicts clip_norm: gradients are clipped by norm or by value, not both",
                also=("clip_norm",),
                hint="Set one of them to null.",
            )

    @rule
    def _check_patterns(self) -> Iterator[Problem]:
        for name in (*self.patterns, "frozen"):
            for index, pattern in enumerate(getattr(self, name)):
                yield from pattern_problems(f"{name}.{index}", pattern, PATTERNS)

    @dead("no_decay", holds=((),))
    def _no_decay_is_dead(self) -> str | None:
        return None if self.weight_decay else NOTHING_DECAYS

    @dead("no_decay_patterns")
    def _no_decay_patterns_are_dead(self) -> str | None:
        return None if self.weight_decay else NOTHING_DECAYS

    def treatment(self, parameter: Parameter) -> dict[str, Any]:
        """Options of a parameter by its name, kind and shape, apart from groups.

        Returns:
            options of its group; parameters with equal options share a group. Empty by default.
        """
        return {}

    def unused_settings(self, parameters: Sequence[Parameter]) -> Iterator[Problem]:
        """Find settings that no parameter uses; paths are relative to the section."""
        yield from ()


Implementation = Literal["auto", "fused", "foreach", "loop"]


class CautiousDecay(OptimizerConfig):
    """Optimizers with optional cautious weight decay."""

    cautious_weight_decay: bool = False
    """Cautious weight decay (Chen et al., 2025): decay only weights that the update moves towards 0
    or leaves unchanged."""

    @dead("cautious_weight_decay")
    def _cautious_weight_decay_is_dead(self) -> str | None:
        return None if self.weight_decay else NOTHING_DECAYS


class AdamWConfig(
    CautiousDecay, type="adamw", owner="setpoint.optim.torch_optimizers:AdamW.from_config"
):
    """AdamW (Loshchilov and Hutter, 2019)."""

    betas: tuple[float, float] = field(default=(0.9, 0.95), item_ge=0, item_lt=1)
    """Adam betas (beta1, beta2): decay rates of the running means of the gradient and of its
    square."""

    eps: float = field(default=1e-8, gt=0, lt=inf)
    """Adam epsilon: added to the denominator, the root of the mean squared gradient."""

    amsgrad: bool = False
    """AMSGrad (Reddi et al., 2018): divide by the root of the running maximum of the mean squared
    gradient."""

    implementation: Implementation = field(default="auto", role=RUNTIME)
    """PyTorch's implementation. fused: one kernel; foreach: each operation over all tensors; loop:
    tensor by tensor; auto: fused where supported."""


class SGDConfig(
    OptimizerConfig, type="sgd", owner="setpoint.optim.torch_optimizers:SGD.from_config"
):
    """Stochastic gradient descent with momentum (Sutskever et al., 2013)."""

    lr: float = field(default=0.1, gt=0, lt=inf, tags=("learning_rate",))
    """Peak learning rate; the schedule multiplies it by its factor at each step."""

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
        """See `OptimizerConfig.keeps_state`: the momentum buffer, if there is one."""
        return self.momentum > 0

    @rule
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
                "dampening", "has no effect: momentum is 0", valid=("0",), also=("momentum",)
            )


class LionConfig(CautiousDecay, type="lion", owner="setpoint.optim.elementwise:Lion.from_config"):
    """Lion (Chen et al., 2023): sign of the momentum."""

    state_formats: ClassVar[bool] = True

    lr: float = field(default=1e-4, gt=0, lt=inf, tags=("learning_rate",))
    """Peak learning rate, three to ten times below AdamW's; the schedule multiplies it."""

    betas: tuple[float, float] = field(default=(0.9, 0.99), item_ge=0, item_lt=1)
    """Lion betas (beta1, beta2): weight of the momentum buffer in the step, and its decay rate."""


class MuonConfig(CautiousDecay, type="muon", owner="setpoint.optim.muon:Muon.from_config"):
    """Muon for the matrices between layers (Jordan et al., 2024), AdamW for all other parameters.

    AdamW trains embeddings, the output, routers, norms, biases, vectors and convolutions.
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

    adamw_lr: float = derived(gt=0, lt=inf)
    """Peak learning rate of the parameters trained by AdamW. Default: lr / 10, or lr with
    adjust_lr = match_rms_adamw."""

    adamw_patterns: tuple[str, ...] = ()
    """Regular expressions searched in parameter names; matching matrices are trained by AdamW."""

    betas: tuple[float, float] = field(default=(0.9, 0.95), item_ge=0, item_lt=1)
    """Adam betas (beta1, beta2) of the parameters trained by AdamW."""

    eps: float = field(default=1e-8, gt=0, lt=inf)
    """Adam epsilon of the parameters trained by AdamW."""

    @property
    def depends_on_parameters(self) -> bool:
        """See `OptimizerConfig.depends_on_parameters`: there must be matrices."""
        return True

    @derive("adamw_lr")
    def _derive_adamw_lr(self) -> float:
        return self.lr if self.adjust_lr == "match_rms_adamw" else self.lr / 10

    @dead("nesterov", holds=(False,))
    def _nesterov_is_dead(self) -> str | None:
        return None if self.momentum else "momentum is 0"

    def treatment(self, parameter: Parameter) -> dict[str, Any]:
        """The algorithm of a parameter; see `OptimizerConfig.treatment`."""
        uses_adamw = any(re.search(pattern, parameter.name) for pattern in self.adamw_patterns)
        if parameter.kind == "matrix" and len(parameter.shape) >= 2 and not uses_adamw:
            turned = {"inputs_first": True} if parameter.inputs_first else {}
            return {"algorithm": "muon", **turned}
        return {"algorithm": "adamw", "lr_multiplier": self.adamw_lr / self.lr}

    def unused_settings(self, parameters: Sequence[Parameter]) -> Iterator[Problem]:
        """Report Muon without any matrix; see `OptimizerConfig.unused_settings`."""
        if any(self.treatment(parameter)["algorithm"] == "muon" for parameter in parameters):
            return
        matrices = sum(parameter.kind == "matrix" for parameter in parameters)
        yield Problem(
            "adamw_patterns",
            f"leaves no parameters for Muon: {matrices or 'none'} of {len(parameters)} trained "
            f"parameters {'are' if matrices > 1 else 'is'} of kind matrix"
            + (", and AdamW trains all of these" if matrices else ""),
            hint="Use optimizer.type = adamw, or leave some matrices for Muon.",
        )


class ScheduleFreeAdamWConfig(
    OptimizerConfig,
    type="schedule_free_adamw",
    owner="setpoint.optim.elementwise:ScheduleFreeAdamW.from_config",
):
    """Schedule-free AdamW (Defazio et al., 2024); evaluated and saved at the averaged point."""

    weight_decay: float = field(default=0.1, ge=0, lt=inf)
    """Decoupled weight decay at the point y where gradients are computed: lr * weight_decay * y is
    subtracted at each step."""

    betas: tuple[float, float] = field(default=(0.9, 0.999), item_gt=0, item_lt=1)
    """Betas (beta1, beta2): interpolation weight of the average x in y, where gradients are
    computed, and decay rate of the mean squared gradient."""

    eps: float = field(default=1e-8, gt=0, lt=inf)
    """Adam epsilon: added to the denominator, the root of the mean squared gradient."""

    lr_power: float = field(default=2.0, ge=0, lt=inf)
    """weight_lr_power: a step's weight in the average is the maximum learning rate so far to this
    power."""

    step_power: float = field(default=0.0, ge=0, lt=inf)
    """Schedule-free r: a step's weight in the average is multiplied by its step number to this
    power; 0: uniform."""


class AnyPrecisionAdamWConfig(
    CautiousDecay,
    type="anyprecision_adamw",
    owner="setpoint.optim.elementwise:AnyPrecisionAdamW.from_config",
):
    """AdamW with weights and optimizer state in bf16 where precision sets it."""

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


class AdafactorConfig(
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
    OptimizerConfig,
    ImportedComponent,
    type="import",
    owner="setpoint.optim.optimizer:build_imported",
):
    """Any torch.optim.Optimizer by its import path; other keys are its arguments."""

    allowed_modules = ("torch.optim",)
    runtime_arguments = ("*",)

    weight_decay: float = field(default=0.0, ge=0, lt=inf)
    """Weight decay, passed to the target, which defines it: decoupled or added to the gradient."""

    def _mistakes(self) -> Iterator[Problem]:
        problems = list(super()._mistakes())
        yield from problems
        if any(problem.path == "target" for problem in problems):
            return
        parameters = parameters_of(self.target.load())
        if self.groups:
            yield from option_problems(self)
        if parameters is not None and not takes_parameter(parameters, "lr"):
            yield Problem(
                "target",
                "does not accept lr, so optimizer.lr and the schedule would have no effect",
            )
        if parameters is None or takes_parameter(parameters, "weight_decay"):
            return
        if self.weight_decay:
            yield Problem(
                "weight_decay",
                f"has no effect: {self.target} does not accept it",
                valid=("0",),
                hint="Set it to 0.",
            )
        for index, group in enumerate(self.groups):
            if group.weight_decay_multiplier not in (None, 0, 1):
                yield Problem(
                    f"groups.{index}.weight_decay_multiplier",
                    f"has no effect: {self.target} does not accept weight_decay",
                    hint="Remove it.",
                )


OWN = {
    "lr": "lr_multiplier, relative to the other groups",
    "weight_decay": "weight_decay_multiplier, relative to the other groups",
    "params": "pattern, which selects its parameters",
    "name": "pattern, which is its name as well",
    "lr_multiplier": "lr_multiplier, outside options",
    "weight_decay_multiplier": "weight_decay_multiplier, outside options",
}
"""Option names that are fields of a group, with the way to set them."""


def known_options(config: OptimizerConfig) -> dict[str, FieldInfo]:
    """Fields of an optimizer that may differ between groups.

    Returns:
        this variant's own fields by name, except runtime fields and fields that apply to all groups
        together.
    """
    shared = OptimizerConfig.__setpoint__.fields
    return {
        name: info
        for name, info in type(config).__setpoint__.fields.items()
        if name not in shared and name not in config.whole and info.role is not RUNTIME
    }


def read_options(config: OptimizerConfig, group: Group) -> dict[str, Any]:
    """Parse the options of a group like the optimizer's own fields."""
    return {name: _read_option(config, name, value) for name, value in group.options.dump().items()}


def _read_option(config: OptimizerConfig, name: str, value: object) -> Any:
    """Parse an option of a group.

    Raises:
        Invalid: an unknown option, or an invalid value, with its path.
    """
    if isinstance(config, ImportedComponent):
        target, given = config.target.load(), {name: value}
        runtime = config.runtime_arguments
        for error in wrong_arguments(target, str(config.target), given, (), runtime):
            if error.at[0] == name:  # the optimizer reports missing values
                raise error
        parameters = parameters_of(target) or {}
        return converted_argument(parameters[name], value) if name in parameters else value
    known = known_options(config)
    try:
        if name in known:
            return known[name].read(value, Origin(DEFAULT))
        tag = type(config).__setpoint__.tag
        if name in type(config).__setpoint__.fields:
            raise Invalid(f"is the same for all groups of type = {tag}", tuple(sorted(known)))
        message = f"type = {tag} has no option {name!r} for a group"
        raise Invalid(message, tuple(sorted(known)), hint=did_you_mean(name, list(known)))
    except Invalid as error:
        raise error.inside(name) from None


def option_problems(config: OptimizerConfig) -> Iterator[Problem]:
    """Check the options of all groups.

    Arguments:
        config: the resolved section; the target of an imported optimizer gets loaded.
    """
    for index, group in enumerate(config.groups):
        path = f"groups.{index}.options"
        values: dict[str, Any] = {}
        wrong = False
        for name, value in group.options.dump().items():
            if name in OWN:
                continue
            try:
                values[name] = _read_option(config, name, value)
            except Invalid as error:
                wrong = True
                for part in error.parts:
                    option = ".".join(map(str, part.at))
                    yield Problem(
                        f"{path}.{option}", part.message, valid=part.valid, hint=part.hint
                    )
        if values and not wrong and not isinstance(config, ImportedComponent):
            yield from _between(config, path, values)


def _between(config: OptimizerConfig, path: str, values: dict[str, Any]) -> Iterator[Problem]:
    """Problems found by the optimizer's own checks of a group's combined options."""
    twin: Config = config.evolve(groups=(), no_decay=(), no_decay_patterns=(), **values)
    try:
        resolve(twin)
    except ConfigError as error:
        for problem in error.problems:
            if problem.path in values:
                yield Problem(
                    f"{path}.{problem.path}",
                    problem.message,
                    valid=problem.valid,
                    hint=problem.hint,
                )
