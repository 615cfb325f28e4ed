"""Loss curves of the small presets, kept bit for bit, so that no arithmetic changes unseen.

    python -m tests.curves             (`make golden`) shows what has changed, and writes it down
    python -m tests.curves NAME ...    prints curves and writes nothing

`golden/curves/NAME.json` holds the losses of a preset's first updates at full precision, on one
thread, by what decides how sums are rounded: the version of torch, and the kind of processor.
"""

import json
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

import setpoint.presets  # noqa: F401 - registers them
from setpoint.config.composition import compose
from setpoint.config.layers.presets import presets
from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.loop import Callback, Loop
from setpoint.train.position import Position
from setpoint.train.verdict import StepResult

FOLDER = Path(__file__).parent / "golden" / "curves"
# Data that is the same everywhere, which the library of the running Python is not; and few tokens.
FLAGS = (
    "data.sources=[{type=random, documents=64, length=600, alphabet=64}]", "batch.global_size=2",
    "batch.sequence_length=128", "duration=16 steps", "evaluation=null", "checkpoint.every=never",
)  # fmt: skip
# On other processors sums are rounded differently. That shows in the last digits at first, by up to
# 1.03e-5 between AMD and Intel; later it grows, where a token just goes to another expert.
SOON, CLOSE, LATER = 5, 3e-5, 2e-2


class Verdict(NamedTuple):
    """How a curve compares with the one that is kept.

    Arguments:
        exact: whether there is one for a machine like this, so that all bits count.
        different: the first update at which they differ too much; None: they agree.
    """

    exact: bool
    different: int | None


class _Losses(Callback):
    """Keeps the losses."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def after_step(self, loop: Loop, result: StepResult) -> None:
        self.seen.append(result.loss)


def names() -> list[str]:
    """The presets that have curves: those small enough to train here."""
    ours = [name for name in presets if presets[name].__module__.startswith("setpoint.")]
    return sorted(name for name in ours if name == "tiny" or name.endswith("-tiny"))


def machine() -> str:
    """What decides how sums are rounded: torch, the instruction set, and who made the processor."""
    vendor = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        found = (line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id"))
        vendor = next(found, "")
    kind = torch.backends.cpu.get_cpu_capability()
    return " ".join(("torch", torch.__version__, platform.machine(), vendor, kind)).replace(
        "  ", " "
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread, and torch's global state as it was afterwards."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


def curve(name: str) -> list[float]:
    """Train a preset for some updates.

    Arguments:
        name: the preset.

    Returns:
        the loss of each update.
    """
    job = compose(Job, name, modifiers=["reproducible"], flags=FLAGS).resolve()
    losses = _Losses()
    with one_thread():
        Loop(job, build_components(job), [losses], StopRequest(), Position()).run()
    return losses.seen


def kept(name: str) -> dict[str, list[float]]:
    """The curves of a preset by machine.

    Arguments:
        name: the preset.

    Returns:
        losses; empty if there is no file.
    """
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def judge(found: list[float], curves: dict[str, list[float]]) -> Verdict:
    """Compare a curve with those that are kept.

    Arguments:
        found: losses.
        curves: by machine, at least one.

    Returns:
        where they differ: in any bit where there is one of a machine like this, and otherwise
        beyond what another order of sums does.
    """
    wanted = curves.get(machine())
    if wanted is not None:
        same = [a == b for a, b in zip(found, wanted, strict=True)]
    else:
        wanted = next(iter(curves.values()))
        bounds = [CLOSE if step < SOON else LATER for step in range(len(wanted))]
        pairs = zip(found, wanted, bounds, strict=True)
        same = [abs(a - b) <= bound * abs(b) for a, b, bound in pairs]
    return Verdict(machine() in curves, None if all(same) else same.index(False))


def rewrite(name: str, found: list[float]) -> list[str]:
    """Keep a curve.

    Where it is another one than before, those of other machines are of older code and go.

    Arguments:
        name: the preset.
        found: its losses.

    Returns:
        what has changed, in lines; empty if nothing has.
    """
    curves = kept(name)
    here = machine()
    before = curves.get(here)
    if before == found:
        return []
    if before is not None or (curves and judge(found, curves).different is not None):
        curves.clear()
    curves[here] = found
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dict(sorted(curves.items())), indent=1)
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    if before is None:
        return [f"new: {here}"]
    pairs = enumerate(zip(before, found, strict=False), start=1)
    return [f"update {step}: {old!r} -> {new!r}" for step, (old, new) in pairs if old != new]


def main() -> int:
    """Print curves, or show what has changed and rewrite the files.

    Returns:
        the exit status.
    """
    if sys.argv[1:]:
        print(json.dumps({name: curve(name) for name in sys.argv[1:]}))
        return 0
    count = 0
    for name in names():
        lines = rewrite(name, curve(name))
        count += bool(lines)
        if lines:
            print(f"tests/golden/curves/{name}.json")
            print("\n".join(f"  {line}" for line in lines))
    for path in FOLDER.glob("*.json"):
        if path.stem not in names():
            print(f"tests/golden/curves/{path.name} is gone")
            path.unlink()
    print(f"{count} curves rewritten" if count else "no curve has changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
