"""Growth of the CPU time to compose, resolve, flatten and hash with 250, 1,000 and 4,000 leaves.

    python -m config.growth [--rounds 15]

A section has sixteen fields of mixed types, one of them derived, and a check. Misses its bound if
a step's time grows with more than the power 1.2 of the leaves; larger trees fit the processor's
caches less well, which costs a tenth.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from harness import options, record, verdict
from setpoint.cli.output import table
from setpoint.config import Config
from setpoint.config.composition import compose
from setpoint.config.draft.walk import leaves
from setpoint.config.record.record import fingerprint

SIZES = (250, 1000, 4000)
OVERRIDES = 10
STEEPEST = 1.2
HEAD = """\
from collections.abc import Iterator
from typing import Literal

from setpoint.config import RUNTIME, Config, Problem, rule, derive, derived, field
from setpoint.units import Period

class Item(Config):
    pass

class Plain(Item, type="plain"):
    size: int = field(default=4, ge=1)

class Scaled(Item, type="scaled"):
    size: int = field(default=8, ge=1)
    scale: float = field(default=1.0, gt=0)
"""
SECTION = """
class Section{n}(Config):
    width: int = field(default=64, ge=1)
    depth: int = field(default=4, ge=1)
    heads: int = field(default=8, ge=1)
    head_width: int = derived(ge=1)
    rate: float = field(default=0.1, gt=0, lt=1)
    decay: float = 0.01
    limit: float | None = None
    kind: Literal["first", "second", "third"] = "first"
    name: str = "section"
    active: bool = True
    every: Period = field(default=Period("10 steps"), role=RUNTIME)
    betas: tuple[float, float] = field(default=(0.9, 0.95), item_ge=0, item_lt=1)
    tags: tuple[str, ...] = ()
    item: Item = field(factory=Plain)
    items: tuple[Item, ...] = field(factory=lambda: (Plain(),))

    @derive("head_width")
    def _derive_head_width(self) -> int:
        return self.width // self.heads

    @rule
    def _check_heads(self) -> Iterator[Problem]:
        if self.width % self.heads:
            yield Problem("heads", "does not divide width")
"""
ROOT = """
class Tree(Config):
{fields}
"""
LEAVES = 17  # of one section: thirteen values, and two items of a tag and a size


def main(words: list[str] | None = None) -> int:
    arguments = options(__doc__, words, rounds=15)
    rounds = arguments.rounds
    gc.disable()  # collections come at moments of their own
    costs = [_measure(size, rounds) for size in SIZES]
    exponents = {
        step: math.log(costs[-1][1][step] / costs[0][1][step], costs[-1][0] / costs[0][0])
        for step in costs[0][1]
    }
    print(f"CPU ms, medians of {rounds}; {OVERRIDES} overrides\n")
    print(table(
        [(step, *(f"{1e3 * times[step]:.2f}" for _, times in costs), f"{exponent:.2f}")
         for step, exponent in exponents.items()],
        headings=("step", *(f"{count} leaves" for count, _ in costs), "exponent"),
    ))  # fmt: skip
    steep = [f"{step}: exponent {each:.2f}" for step, each in exponents.items() if each > STEEPEST]
    last, slowest = costs[-1][1]["compose + resolve"], max(exponents.values())
    record(arguments, "config.growth", {
        "growth of compose and resolve with the number of values, 255 to 3,995":
            f"exponent {min(exponents.values()):.2f} to {slowest:.2f} (bound {STEEPEST}); "
            f"{1e3 * last:.1f} ms for 3,995",
    })  # fmt: skip
    return verdict(steep, f"no exponent is above {STEEPEST}")


def _tree(size: int) -> tuple[type[Config], list[str]]:
    """Fresh classes of about as many leaves, and overrides that are spread over the tree."""
    count = max(1, round(size / LEAVES))
    # Groups of sixteen sections keep the tree three levels deep, however wide it is.
    groups = [range(start, min(start + 16, count)) for start in range(0, count, 16)]
    text = HEAD + "".join(SECTION.format(n=n) for n in range(count))
    for index, group in enumerate(groups):
        fields = "\n".join(f"    s{n}: Section{n} = field(factory=Section{n})" for n in group)
        text += ROOT.replace("Tree", f"Group{index}").format(fields=fields)
    fields = "\n".join(f"    g{n}: Group{n} = field(factory=Group{n})" for n in range(len(groups)))
    text += ROOT.format(fields=fields)
    name = f"benchmark_tree_{time.perf_counter_ns()}"
    module = type(sys)(name)
    sys.modules[name] = module
    exec(compile(text, name, "exec"), vars(module))
    chosen = [count * index // OVERRIDES for index in range(OVERRIDES)]
    values = ("width 128", "depth 6", "rate 0.2", "kind third", "name other", "active false")
    flags: list[str] = []
    for index, n in enumerate(chosen):
        field, value = values[index % len(values)].split()
        flags.append(f"--g{n // 16}.s{n}.{field}={value}")
    return module.Tree, flags


def _measure(size: int, rounds: int) -> tuple[int, dict[str, float]]:
    """The number of leaves, and the median CPU seconds of each step."""
    first: list[float] = []
    for _ in range(3):
        cls, flags = _tree(size)
        first.append(_seconds(lambda: fingerprint(compose(cls, flags=flags).resolve())))  # noqa: B023
    cls, flags = _tree(size)
    resolved = compose(cls, flags=flags).resolve()
    count = sum(1 for _ in leaves(resolved))
    steps: dict[str, Callable[[], Any]] = {
        "compose + resolve": lambda: compose(cls, flags=flags).resolve(),
        "flatten": lambda: list(leaves(resolved)),
        "fingerprint (again)": lambda: fingerprint(resolved),
        "evolve + resolve": lambda: compose(cls, resolved.evolve()).resolve(),
    }
    found = {"first of a process": statistics.median(first)}
    for name, step in steps.items():
        step()
        found[name] = statistics.median(_seconds(step) for _ in range(rounds))
    return count, found


def _seconds(step: Callable[[], Any]) -> float:
    gc.collect()
    before = time.process_time()
    step()
    return time.process_time() - before


if __name__ == "__main__":
    sys.exit(main())
