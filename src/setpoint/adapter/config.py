"""The section `adapter`: low-rank adapters, where they go, and when they are merged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf
from typing import ClassVar, Literal

from setpoint.config import Config, Problem, check, dead, field


class PatternRank(Config):
    """Rank and alpha of the modules that a pattern is found in."""

    pattern: str
    """Regular expression searched in names of adapted modules; the first that matches counts."""

    rank: int | None = field(default=None, ge=1)
    """Rank of these modules; null: adapter.rank."""

    alpha: float | None = field(default=None, gt=0, lt=inf)
    """Alpha of these modules; null: adapter.alpha."""

    @check
    def _check_pattern(self) -> Iterator[Problem]:
        yield from pattern_problems("pattern", self.pattern)
        if self.rank is None and self.alpha is None:
            yield Problem(
                "pattern", "has no effect: neither rank nor alpha is given", hint="Remove it."
            )


class AdapterConfig(Config):
    """Low-rank adapter: W x + scale * B A x with a frozen W (LoRA, Hu et al., 2021)."""

    has_magnitude: ClassVar[bool] = False
    """Whether the rows of merged weights have lengths that are trained (DoRA)."""

    rank: int = field(default=16, ge=1, also_called=("r", "lora_rank", "lora_r", "lora_dim"))
    """Rank of the update: rows of A and columns of B."""

    alpha: float = field(default=16.0, gt=0, lt=inf, also_called=("lora_alpha", "scaling"))
    """Scale numerator: the update is multiplied by alpha / rank."""

    rank_stabilized: bool = field(
        default=False, also_called=("use_rslora", "rslora", "rank_stabilised")
    )
    """Rank-stabilized scale (rsLoRA, Kalajdzievski, 2023): alpha / sqrt(rank)."""

    ranks: tuple[PatternRank, ...] = field(
        default=(), also_called=("rank_pattern", "alpha_pattern")
    )
    """Rank and alpha by patterns on names of modules."""

    dropout: float = field(default=0.0, ge=0, lt=1, also_called=("lora_dropout",))
    """Dropout of the input of A, in training."""

    b_std: float = field(default=0.0, ge=0, lt=inf, also_called=("lora_b_init_std",))
    """Standard deviation of B at the start, of A for an embedding; 0: the model begins as it is
    without the adapter."""

    targets: tuple[str, ...] | None = field(
        default=None,
        also_called=("target_modules", "lora_target_modules", "module_name_pattern"),
    )
    """Adapted modules: regular expressions searched in names of linear layers, embeddings and
    packed experts; null: all linear layers and experts within the layers."""

    exclude: tuple[str, ...] | None = field(
        default=None, also_called=("exclude_modules", "lora_exclude_modules")
    )
    """Modules left without an adapter, by patterns as in targets; null: the output matrix
    (lm_head). Routers (MoE gates) never have one."""

    train: tuple[str, ...] = field(
        default=(), also_called=("modules_to_save", "additional_trainable_modules")
    )
    """Other parameters that are trained whole: regular expressions searched in parameter names. All
    else is frozen."""

    fused: Literal["whole", "split"] = field(
        default="whole", also_called=("unfuse_for_lora", "enable_lora")
    )
    """Fused projections (merge_qkv). whole: one A for all; split: an A and a B for each of query,
    key and value."""

    def scale_of(self, rank: int, alpha: float) -> float:
        """What an update is multiplied by."""
        return alpha / rank**0.5 if self.rank_stabilized else alpha / rank

    @property
    def can_be_searched(self) -> bool:
        """Whether all patterns are regular expressions."""
        patterns = [*(self.targets or ()), *(self.exclude or ()), *self.train]
        patterns += [each.pattern for each in self.ranks]
        return not any(True for each in patterns for _ in pattern_problems("", each))

    @dead("rank_stabilized")
    def _scale_is_dead(self) -> str | None:
        ranks = [self.rank, *(each.rank for each in self.ranks if each.rank is not None)]
        if self.rank_stabilized and set(ranks) == {1}:
            return "alpha / sqrt(1) is alpha / 1"
        return None

    @check
    def _check_patterns(self) -> Iterator[Problem]:
        for name in ("targets", "exclude", "train"):
            for index, pattern in enumerate(getattr(self, name) or ()):
                yield from pattern_problems(f"{name}.{index}", pattern)
        if self.targets == ():
            yield Problem(
                "targets", "is empty, so that nothing is adapted", valid=("null", '["query"]')
            )


class LoRA(AdapterConfig, type="lora"):
    """LoRA (Hu et al., 2021)."""


class DoRA(AdapterConfig, type="dora"):
    """DoRA (Liu et al., 2024): LoRA for the direction of each row, and a trained length."""

    has_magnitude: ClassVar[bool] = True


def pattern_problems(path: str, pattern: str) -> Iterator[Problem]:
    """Check the form of a regular expression on names."""
    if not pattern:
        yield Problem(path, "is empty, and would match all names", valid=("query", "feed_forward"))
        return
    try:
        re.compile(pattern)
    except re.error as error:
        yield Problem(path, f"is no regular expression: {error}")
