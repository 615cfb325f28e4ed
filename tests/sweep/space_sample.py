"""A small root class with sources, and a sweep over it."""

from collections.abc import Sequence
from typing import Literal

import setpoint as sp
from setpoint.config import RUNTIME, Config, Problem, SetpointError, field
from setpoint.config.composition import Composition, compose
from setpoint.sweep.points import Composer, Points, read_command_line, resolve_points
from setpoint.sweep.setting import Setting
from setpoint.sweep.space import Product


class Rule(Config):
    """How steps are taken."""

    lr: float = field(default=0.1, gt=0, tags=("rate",))


class Plain(Rule, type="plain"):
    """Plain steps."""


class Momentum(Rule, type="momentum"):
    """Steps with momentum."""

    beta: float = field(default=0.9, ge=0, lt=1)


class Root(Config):
    """The root."""

    seed: int = 0
    size: int = field(default=8, ge=1)
    parts: int = 2
    widths: tuple[int, ...] = (1, 2)
    fast: bool = False
    shown: Literal["yes", "no"] = field(default="yes", role=RUNTIME)
    rule: Rule = field(factory=Plain)

    @sp.rule
    def _check_parts(self) -> list[Problem]:
        if self.size % self.parts:
            return [Problem("parts", f"do not divide {self.size}", also=("size",))]
        return []


def open_root(
    source: str, modifiers: tuple[str, ...], below: Setting | None = None
) -> Composition[Root]:
    """The defaults, `big`, or an error."""
    if source not in ("defaults", "big"):
        raise SetpointError(f"there is no source {source!r}")
    composition = compose(Root, modifiers=modifiers)
    if source == "big":
        composition.draft.size = 64
    return composition


def sweep(
    *tokens: str, source: str = "defaults", modifiers: Sequence[str] = (), limit: int = 1000
) -> Points[Root]:
    """The points of a command line."""
    line = read_command_line(Root, source, modifiers, tokens)
    return resolve_points(Product(line.axes), Composer(open_root, line), limit)
