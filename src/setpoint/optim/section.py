"""What all optimizers share: learning rate, weight decay, clipping and parameter groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from setpoint.config import Builds, Config, Free, Problem, Rule, check, dead, derive, derived, field
from setpoint.shapes.parameter import Kind, Parameter, pattern_problems
from setpoint.units import Length

if TYPE_CHECKING:
    from torch.optim import Optimizer  # noqa: F401 - a text names it

PATTERNS = (r"\.norm\.", "embed")
"""What is offered in place of an empty pattern."""
NOTHING_DECAYS = "nothing decays with weight_decay = 0"


class Group(Config):
    """Parameter group with its own settings."""

    pattern: str
    """Regular expression searched in full parameter names; the first group that matches takes a
    parameter."""

    lr_multiplier: float = field(default=1.0, ge=0, lt=inf)
    """Learning rate multiplier of the group."""

    weight_decay_multiplier: float | None = field(default=None, ge=0, lt=inf)
    """Weight decay multiplier of the group, which overrides no_decay; null: by no_decay."""

    options: Free = field(factory=Free)
    """Other optimizer options of this group, by their own names: {betas = [0.9, 0.99]}."""

    @property
    def changes_nothing(self) -> bool:
        """Whether its parameters are trained as if it were not there."""
        same = self.lr_multiplier == 1.0 and self.weight_decay_multiplier is None
        return same and not self.options.dump()

    @check
    def _check_pattern(self) -> Iterator[Problem]:
        yield from pattern_problems("pattern", self.pattern, PATTERNS)


class FrozenSpan(Config):
    """Parameters that are frozen for a part of the run."""

    pattern: str
    """Regular expression searched in parameter names."""

    start: Length = Length(0)
    """Where freezing starts: steps, tokens, epochs or time of the run."""

    stop: Length | None = None
    """Where training goes on; null: never."""

    def holds(self, reached: Callable[[str], float]) -> bool:
        """Whether the parameters are frozen.

        Arguments:
            reached: how far the run is, in a unit.
        """
        if self.stop is not None and reached(self.stop.unit) >= self.stop.count:
            return False
        return reached(self.start.unit) >= self.start.count

    @check
    def _check_span(self) -> Iterator[Problem]:
        yield from pattern_problems("pattern", self.pattern, PATTERNS)
        for name, length in (("start", self.start), ("stop", self.stop)):
            if length is not None and length.share is not None:
                yield Problem(
                    name,
                    f"{length} of a run changes with its duration, which may grow",
                    valid=("100 steps", "1e9 tokens", "0.5 epochs", "10 min"),
                )
        start, stop = self.start, self.stop
        if stop is None and not start:
            yield Problem(
                "stop",
                "is null, and start is 0: what is frozen for the whole run stands in frozen",
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
    Rule("setpoint.optim.options:group_problems",
         "Whether parameter groups change anything, and have options that there are",
         when=lambda optimizer: bool(optimizer.groups)),
)  # fmt: skip


class OptimizerConfig(Builds["Optimizer"], rules=RULES):
    """Optimizer: what all types share."""

    state_formats: ClassVar[bool] = False
    """Whether it keeps its state in another number format than the weights', if asked to."""

    draws: ClassVar[bool] = False
    """Whether it draws random numbers, and takes a `seed` for them, the same on all ranks."""

    patterns: ClassVar[dict[str, tuple[Kind, ...] | None]] = {"no_decay_patterns": None}
    """The fields that hold patterns on names, apart from groups, with the kinds of parameters that
    they choose among; None: all."""

    whole: ClassVar[tuple[str, ...]] = ()
    """Fields of a variant that hold for all groups together, and are no options of a group."""

    read_by: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Where `treatment` gives parameters one of several algorithms: the options of a group that
    each of them reads, by its name."""

    lr: float = field(default=3e-4, gt=0, lt=inf, tags=("learning_rate",))
    """Peak learning rate; the schedule multiplies it by its factor at each step."""

    weight_decay: float = field(default=0.1, ge=0, lt=inf)
    """Decoupled weight decay: lr * weight_decay * weight is subtracted at each step, but for the
    kinds in no_decay."""

    no_decay: tuple[Kind, ...] = field(factory=lambda: ("norm", "bias", "vector"))
    """Parameter kinds without weight decay. norm includes a norm's bias; matrix, vector and tensor
    (3 or more dimensions) are of no other kind."""

    no_decay_patterns: tuple[str, ...] = ()
    """Regular expressions searched in parameter names: those that match have no weight decay."""

    groups: tuple[Group, ...] = ()
    """Parameter groups with their own settings, by patterns on parameter names."""

    frozen: tuple[str, ...] = ()
    """Frozen parameters: regular expressions searched in parameter names. Those that match have no
    gradients, master weights or optimizer state."""

    frozen_spans: tuple[FrozenSpan, ...] = ()
    """Parameters frozen for a part of the run: neither weights nor optimizer state change then, and
    gradients are not in the norm."""

    clip_norm: float | None = derived(gt=0)
    """Gradient clipping by global norm (max_grad_norm); null: off, the norm is logged all the same.
    Unless given 1, or null if clip_value is given."""

    clip_value: float | None = field(default=None, gt=0, lt=inf)
    """Gradient clipping of each element to [-clip_value, clip_value]; excludes clip_norm; null:
    off."""

    @property
    def keeps_state(self) -> bool:
        """Whether it keeps optimizer state of the size of the weights between steps."""
        return True

    @property
    def has_patterns(self) -> bool:
        """Whether anything of it depends on the names of parameters."""
        return bool(self.groups or self.frozen or self.frozen_spans) or any(
            getattr(self, field) for field in self.patterns
        )

    @derive("clip_norm")
    def _derive_clip_norm(self) -> float | None:
        return 1.0 if self.clip_value is None else None

    @check
    def _check_clipping(self) -> Iterator[Problem]:
        if self.clip_value is not None and self.clip_norm is not None:
            yield Problem(
                "clip_value",
                "contradicts clip_norm: gradients are clipped by their norm or by value, not both",
                also=("clip_norm",),
                hint="Set one of them to null.",
            )

    @check
    def _check_patterns(self) -> Iterator[Problem]:
        for index, pattern in enumerate(self.no_decay_patterns):
            yield from pattern_problems(f"no_decay_patterns.{index}", pattern, PATTERNS)
        for index, pattern in enumerate(self.frozen):
            yield from pattern_problems(f"frozen.{index}", pattern, PATTERNS)

    @dead("no_decay", holds=((),))
    def _no_decay_is_dead(self) -> str | None:
        return None if self.weight_decay else NOTHING_DECAYS

    @dead("no_decay_patterns")
    def _no_decay_patterns_are_dead(self) -> str | None:
        return None if self.weight_decay else NOTHING_DECAYS

    def treatment(self, parameter: Parameter) -> dict[str, Any]:
        """What this optimizer wants to do differently for a parameter, apart from all rules.

        Returns:
            options of its group; parameters with the same share one. None by default.
        """
        del parameter
        return {}

    def idle(self, parameters: Sequence[Parameter]) -> Iterator[Problem]:
        """Look for settings that no parameter is there to follow.

        Returns:
            problems with paths relative to the section. None by default.
        """
        del parameters
        yield from ()
