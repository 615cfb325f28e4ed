"""Options, report, turns of the sides, clocks, memory and processes of all benchmarks."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from setpoint.train.build.components import Components
    from setpoint.train.config import Job
    from setpoint.train.loop import Loop

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "benchmarks.md"

FREE = {"rounds", "blocks", "steps", "seconds", "folder", "models", "precisions", "fast"}
"""Options that `--write` allows: how often sides run, where, and which rows are written."""


def options(doc: str | None, words: Sequence[str] | None = None, **defaults: Any) -> Any:
    """Read a command line whose options are given by their defaults.

    Arguments:
        doc: the docstring of the module; its first line and its usage are the manual.
        words: the arguments, those of the process if None.
        defaults: a bool is a switch; a tuple has what may be chosen, the default first; of a list
            the items tell the type, and `[""]` and `[0]` are empty; None is a text that may be
            absent.

    Returns:
        the options by name, and as `write` whether to record the results.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(flag, choices=dict.fromkeys(default), default=default[0])
        elif isinstance(default, list):
            value = [item for item in default if item]
            parser.add_argument(flag, nargs="*", type=type(default[0]), default=value)
        else:
            kind = str if default is None else type(default)
            parser.add_argument(flag, type=kind, default=default, help=f"default: {default}")
    parser.add_argument("--write", action="store_true", help=f"put the results into {PAGE.name}")
    return parser.parse_args(words)


def devices() -> tuple[str, ...]:
    """Devices of torch, a GPU first if there is one."""
    import torch

    return ("cuda", "cpu") if torch.cuda.is_available() else ("cpu", "cuda")


class Report:
    """Options, table, results and missed bounds of a benchmark.

    Arguments:
        name: the first column of its rows in docs/benchmarks.md.
        doc: the docstring of the module.
        words: the arguments, those of the process if None.
        defaults: the options, as `options` takes them.
    """

    def __init__(
        self, name: str, doc: str | None, words: Sequence[str] | None = None, **defaults: Any
    ) -> None:
        self.name = name
        self.options = options(doc, words, **defaults)
        usual = options(doc, [], **defaults)
        changed = [key for key in defaults if getattr(self.options, key) != getattr(usual, key)]
        if self.options.write and (other := [f"--{key}" for key in changed if key not in FREE]):
            sys.exit(f"--write records the default measurement: leave out {', '.join(other)}")
        self.rows: list[Sequence[str]] = []
        self.results: dict[str, str] = {}
        """The last column of rows in docs/benchmarks.md, by the one before."""
        self.failed: list[str] = []

    def bound(self, kept: bool, failure: str) -> None:
        """Note a bound that is missed."""
        if not kept:
            self.failed.append(failure)

    def leave_out(self, side: str, package: str) -> None:
        """Print that a side is not measured, or stop if the results were to be written."""
        reason = f"{package} is not installed; see `make bench-train`"
        if self.options.write:
            sys.exit(f"--write needs all sides: {side} is missing, as {reason}")
        print(f"left out: {side}, as {reason}")

    def agree(self, title: str, outputs: Mapping[str, Sequence[Tensor]], tolerance: float) -> None:
        """Compare the tensors of all sides with those of the first, relative to their norms."""
        expected, *_ = outputs.values()
        for name, tensors in outputs.items():
            for ours, theirs in zip(tensors, expected, strict=True):
                gap = float((ours.float() - theirs.float()).norm() / theirs.float().norm())
                self.bound(gap <= tolerance, f"{title}: {name} differs by {gap:.1e}")

    def compare(
        self,
        title: str,
        sides: Mapping[str, Callable[[], object]],
        bounds: Mapping[str, float],
        device: torch.device,
        warm: int = 2,
        before: Callable[[], object] = lambda: None,
    ) -> dict[str, tuple[Ratio, Ratio]]:
        """Run the sides in turns; the speed of the first over the others, by wall and CPU time.

        Arguments:
            title: of the comparison.
            sides: by name.
            bounds: the least ratios, by the name of the other side.
            device: where they compute.
            warm: rounds that are not measured.
            before: called before each turn, outside of its time.
        """
        ours, *others = sides
        clocks = clocks_in_turns(sides, max(2, self.options.rounds), device, warm, before)
        self.seconds = {name: statistics.median(times) for name, times in clocks.wall.items()}
        found: dict[str, tuple[Ratio, Ratio]] = {}
        for other in others:
            wall, cpu = (ratio(times, ours, other) for times in clocks)
            found[other] = wall, cpu
            least = bounds.get(other, 0.0)
            missed = misses(clocks, ours, other, least, device)
            self.bound(not missed, f"{title}: {wall.median:.3f} of {other}, below {least}")
        return found

    def finish(self, headings: Sequence[str] = (), note: str = "") -> int:
        """Print the table, write the results, and return the exit status."""
        if note:
            print(note + "\n")
        if self.rows:
            from setpoint.cli.output import table

            print(table(self.rows, headings=headings))
        if self.options.write:
            record(self.name, self.results)
        for failure in self.failed:
            print(f"MISSED {failure}")
        return 1 if self.failed else 0


def record(benchmark: str, results: Mapping[str, str]) -> None:
    """Write results into the tables of docs/benchmarks.md, with the date and the machine's load.

    Arguments:
        benchmark: the first column; further rows of a benchmark leave it empty.
        results: the third column of rows, by their second.
    """
    when = f"{time.strftime('%Y-%m-%d', time.gmtime())}, load {os.getloadavg()[0]:.0f}"
    lines, left, name = PAGE.read_text().splitlines(), dict(results), ""
    for number, line in enumerate(lines):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3:
            name = cells[0].strip("`") or name
            if name == benchmark and cells[1] in left:
                first = f"{cells[0]} " if cells[0] else ""
                lines[number] = f"| {first}| {cells[1]} | {left.pop(cells[1])} ({when}) |"
    if left:
        raise KeyError(f"{PAGE.name} has no row of {benchmark} that shows: {'; '.join(left)}")
    PAGE.write_text("\n".join(lines) + "\n")


def write_block(page: Path, mark: str, lines: Sequence[str]) -> None:
    """Replace what stands between the comments `<!-- mark -->` and `<!-- end -->` of a page."""
    head, begin, rest = page.read_text().partition(f"<!-- {mark} -->")
    _, end, tail = rest.partition("<!-- end -->")
    page.write_text("\n".join([head + begin, "", *lines, "", end + tail]))


# Sides that take turns, so that whatever else the machine does hits all of them.


class Ratio(NamedTuple):
    """How many times as fast one side is as another: median, 10th and 90th percentile."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f})"


class Clocks(NamedTuple):
    """Seconds of each round by side.

    Arguments:
        wall: by the clock.
        cpu: of all threads of the process; steadier where others use the machine, and of no use
            where a GPU does the work.
    """

    wall: dict[str, list[float]]
    cpu: dict[str, list[float]]


def clocks_in_turns(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    device: torch.device,
    warm: int = 2,
    before: Callable[[], object] = lambda: None,
) -> Clocks:
    """Run each side once a round: A B C, C B A, and so on, after rounds that are not measured."""
    clocks = Clocks({name: [] for name in sides}, {name: [] for name in sides})
    names = list(sides)
    for number in range(-warm, rounds):
        for name in names if number % 2 == 0 else reversed(names):
            before()
            synchronize(device)
            wall, cpu = time.perf_counter(), time.process_time()
            sides[name]()
            synchronize(device)
            if number >= 0:
                clocks.wall[name].append(time.perf_counter() - wall)
                clocks.cpu[name].append(time.process_time() - cpu)
    return clocks


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def ratio(times: Mapping[str, list[float]], ours: str, theirs: str) -> Ratio:
    """Compare the neighbouring turns of two sides; above 1 where ours is faster."""
    pairs = [b / a for a, b in zip(times[ours], times[theirs], strict=True)]
    tenths = statistics.quantiles(pairs, n=10, method="inclusive")
    return Ratio(statistics.median(pairs), tenths[0], tenths[-1])


def misses(clocks: Clocks, ours: str, theirs: str, bound: float, device: torch.device) -> bool:
    """Whether the median ratio is below a bound: by the clock, and on a CPU by CPU time as well."""
    both = [clocks.wall] if device.type == "cuda" else list(clocks)
    return all(ratio(times, ours, theirs).median < bound for times in both)


# Memory.


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """The most that tensors take while a step runs, above what was there before.

    On a CPU it counts what torch's allocator was asked for, from the profiler's events, which is
    the same each time; the scratch space inside of matrix products is not in it.

    Arguments:
        step: run twice, of which the first time warms up; leaves nothing behind that it did not
            find, such as gradients.
        device: whose memory is meant.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from setpoint.profile.profiler import without_chatter

    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with without_chatter(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    results = seen.profiler.kineto_results  # pyright: ignore[reportOptionalMemberAccess]
    events = [event for event in results.events() if event.name() == "[memory]"]
    # Above the lowest point before: what a step frees at its start, such as old gradients, is in
    # the events or not, as it was allocated while another profile was taken or not.
    now = lowest = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        lowest = min(lowest, now)
        peak = max(peak, now - lowest)
    return peak


def forget_peak() -> int:
    """Let `VmHWM` start anew; the resident memory of this process now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_line("VmRSS")


def memory_line(name: str) -> int:
    """Bytes that the system reports of this process: `VmRSS` now, `VmHWM` at most; 0 if unknown."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    (found, *_) = [*(line for line in lines if line.startswith(f"{name}:")), "0 0"]
    return int(found.split()[1]) * 1024


# Processes.


def clean_environment(bytecode: Path) -> dict[str, str]:
    """Today's environment without what changes how Python or Setpoint start.

    Arguments:
        bytecode: where Python keeps compiled modules, so that the second start of each side finds
            them, whatever the folders of their sources allow.
    """
    unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONOPTIMIZE")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in unwanted and not name.startswith("SETPOINT__")
    }
    return {**kept, "PYTHONPYCACHEPREFIX": str(bytecode)}


class Used(NamedTuple):
    """Seconds of a process, and the most of its resident memory in bytes."""

    wall: float
    cpu: float
    peak: int


def spawn(
    command: Sequence[str], environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Used:
    """Run a process, whose output is dropped, or end with its error."""
    null = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1)]
    # A child starts in the folder of its parent; posix_spawn has no option for it.
    before, began = Path.cwd(), time.perf_counter()
    os.chdir(cwd or before)
    try:
        child = os.posix_spawn(command[0], command, environment or os.environ, file_actions=null)
    finally:
        os.chdir(before)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} failed with wait status {status}")
    wall, cpu = time.perf_counter() - began, usage.ru_utime + usage.ru_stime
    return Used(wall, cpu, usage.ru_maxrss * 1024)


# Training by hand, and by Setpoint.


def adamw(parameters: Iterable[nn.Parameter], config: Any) -> torch.optim.AdamW:
    """Torch's fused AdamW with the options of Setpoint's, and weight decay of matrices only."""
    import torch

    # The fused kernel takes DTensors or other tensors, not both.
    kinds: dict[tuple[bool, type], list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.ndim >= 2, type(parameter.data)), []).append(parameter)
    groups = [
        {"params": members, "weight_decay": config.weight_decay if is_matrix else 0.0}
        for (is_matrix, _), members in kinds.items()
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def setpoint_step(job: Job) -> Callable[[], float]:
    """A step of Setpoint's loop without callbacks, which gives its loss."""
    from setpoint.resilience.signals import StopRequest
    from setpoint.train.build.components import build_components
    from setpoint.train.loop import Loop
    from setpoint.train.position import Position

    loop = Loop(job, build_components(job), [], StopRequest(), Position())
    loop.components.model.train()
    return lambda: loop.step().loss


@contextmanager
def training_loop(
    job: Job, components: Components, folder: Path, output: Any, more: Sequence[Any]
) -> Iterator[Loop]:
    """The loop of `setpoint train`, wired as a run wires it, with callbacks that run last."""
    from setpoint.resilience.signals import StopRequest
    from setpoint.track.progress import make_progress
    from setpoint.train.callbacks.build_callbacks import build_callbacks
    from setpoint.train.loop import Loop
    from setpoint.train.open import compare, open_directory
    from setpoint.train.resume import resume
    from setpoint.train.run_record import start_record

    total = job.duration.in_unit("steps")
    run = compare(job, folder, ())
    run.world, run.components, run.began = components.world, components, time.time()
    run.shown = make_progress(
        job.tracking.progress, total_steps=None if total is None else int(total), stream=output
    )
    with StopRequest() as stop:
        run.stop = stop
        with open_directory(run):
            resume(run)
            start_record(run)
            with run.progress:
                yield Loop(job, components, [*build_callbacks(run), *more], stop, run.started)
