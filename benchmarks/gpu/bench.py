"""What trains how fast on one GPU, beside a bare loop in plain PyTorch.

    cd benchmarks && PYTHONPATH=../src python3 -m gpu.bench [--only 1b moe] [--json rows.json]

Each case is a `setpoint train` in a process of its own on tokens made here, and then, for most, the
same shapes in plain PyTorch (`gpu.bare`). A case that fails or takes too long is told with its
error, and the others run. After a chunk of steps that warms up, whole chunks are timed by the
clock on the wall; then two steps are profiled. Leaves with status 1 if a case failed. It imports no
torch itself, needs no network, and takes whatever torch the Python has that runs it.

`--device cpu --small` runs the same in small on a CPU, where float8 is emulated.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path

import numpy as np

from gpu.cases import CASES, CHUNK, flops_per_token, resolved, shape_of, values_of
from gpu.trace import Activity, activity_of, read
from harness import options
from setpoint.cli.check_plan import make_plan
from setpoint.cli.output import table
from setpoint.config import SetpointError
from setpoint.track.accelerators import peak_of
from setpoint.train.config import Job

SIDES = ("setpoint", "bare")
SEPARATOR = 256
HERE = Path(__file__).resolve().parent.parent
ASKED = "name,driver_version,memory.total,clocks.sm,power.draw,temperature.gpu"
# How far Setpoint's own figure may lie from the clock on the wall.
APART = 0.03
HEADINGS = (
    "case", "side", "tokens/s", "x bare", "MFU", "GiB", "plan", "first s", "idle", "gap ms",
    "waits", "attention", "heaviest kernel",
)  # fmt: skip


@dataclass
class Row:
    """What one side of one case came to.

    Arguments:
        error: why there is nothing; empty otherwise.
        tokens_per_second: of the timed chunks, by the median.
        logged: the same by the rows of metrics.
        mfu: of `tokens_per_second`; None where the device's peak is not known.
        peak_bytes: the most that tensors have taken; on a CPU, the process.
        planned_bytes: the same by `check --plan`.
        first_seconds: until the first chunk ended: the start, the compiler and what warms up.
        notes: what is odd about the figures.
    """

    case: str
    side: str
    error: str = ""
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    logged: float | None = None
    mfu: float | None = None
    peak_bytes: int | None = None
    planned_bytes: int | None = None
    first_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    activity: Activity | None = None
    notes: list[str] = field(default_factory=list)
    log: str = ""


@dataclass
class Bench:
    """One session.

    Arguments:
        peak: operations per second of the device; None: not known.
        until: when the session is over, by the monotonic clock.
        limit: seconds of one side of a case.
    """

    folder: Path
    device: str
    small: bool
    peak: float | None
    until: float
    limit: float

    def run(self, name: str, side: str) -> Row:
        """One side of one case, which may fail without harm to the others."""
        row, began = Row(name, side), time.time()
        folder = self.folder / f"{name}-{side}"
        folder.mkdir(parents=True)
        try:
            self.measure(row, folder, began)
        except (SetpointError, OSError, ValueError, KeyError, RuntimeError) as error:
            row.error = " ".join(str(error).split()) or repr(error)
        log = folder / "log"
        row.log = log.read_text(errors="replace")[-4000:] if log.exists() else ""
        row.seconds = time.time() - began
        return row

    def measure(self, row: Row, folder: Path, began: float) -> None:
        """Run it, and fill in the row."""
        file = folder / "job.json"
        workspace = folder / "runs"
        values = values_of(
            row.case, self.device, self.folder / "tokens.npy", workspace, self.peak, self.small
        )
        file.write_text(json.dumps(values))
        job = resolved(file)
        shape = shape_of(job, row.case, self.device)
        if row.side == "setpoint":
            row.planned_bytes = planned_bytes(job)
            self.start(["setpoint", "train", str(file)], folder)
            (run,) = workspace.iterdir()
            read_run(row, run, began, CASES[row.case].timed)
        else:
            sizes = folder / "shape.json"
            sizes.write_text(json.dumps(shape))
            self.start(["gpu.bare", str(sizes), str(folder)], folder)
            tokens = CHUNK * shape["micro"] * shape["accumulation"] * shape["length"]
            found = json.loads((folder / "bare.json").read_text())
            fill(row, tokens=tokens, began=began, **found)
        if self.peak is not None:
            row.mfu = row.tokens_per_second * flops_per_token(shape) / self.peak
        if row.logged and abs(row.logged / row.tokens_per_second - 1) > APART and not self.small:
            row.notes.append(f"the rows say {row.logged:,.0f} tokens/s")
        if any(loss != loss for loss in row.losses):
            row.notes.append("the loss is not a number")

    def start(self, words: Sequence[str], folder: Path) -> None:
        """Run a module as a process of its own, and end it when its time is over."""
        left = self.until - time.monotonic()
        if left < 5:
            raise RuntimeError("left out: the time of the session is over")
        seconds = min(self.limit, left)
        paths = [str(HERE.parent / "src"), str(HERE), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        if words[0] == "gpu.bare":  # Setpoint sets it by itself
            environment.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(seconds)
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise RuntimeError(f"stopped after {seconds:.0f} s") from error
                raise
        if status:
            raise RuntimeError(last_words((folder / "log").read_text(errors="replace"), status))


def planned_bytes(job: Job) -> int | None:
    """The most memory of the GPU that the plan expects; None: it expects nothing."""
    memory = make_plan(job).memory
    return None if memory is None else memory.total


def last_words(log: str, status: int) -> str:
    """The error among what a process has printed."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = [n for n, line in enumerate(lines) if line.startswith("error:")]
    text = " ".join(lines[told[-1] :] if told else lines[-1:])
    return f"status {status}: {text[:400]}"


def read_run(row: Row, run: Path, began: float, timed: int) -> None:
    """Fill in what a run directory says."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    rows = [line for line in lines if line["kind"] == "train" and line["step"] <= timed]
    if not rows or rows[-1]["step"] != timed:
        raise ValueError(f"{run} has no row of step {timed}")
    times = [datetime.fromisoformat(line["time"]).timestamp() for line in rows]
    tokens = rows[1]["tokens"] - rows[0]["tokens"]
    (trace,) = run.glob("traces/**/steps-*.json.gz")
    peak = rows[-1].get("peak_gpu_memory", rows[-1]["peak_rss"])
    fill(row, times, tokens, began, [line["loss"] for line in rows], peak, trace)
    row.logged = statistics.median(line["tokens_per_second"] for line in rows[1:])


def fill(
    row: Row,
    times: Sequence[float],
    tokens: int,
    began: float,
    losses: list[float],
    peak_bytes: int,
    trace: Path | str,
) -> None:
    """Fill in speed, memory and what the trace shows; `tokens` are those between two times."""
    row.tokens_per_second = statistics.median(
        tokens / (b - a) for a, b in itertools.pairwise(times)
    )
    row.first_seconds = times[0] - began
    row.losses, row.peak_bytes = losses, peak_bytes
    row.activity = activity_of(read(Path(trace)))


def cells_of(rows: Sequence[Row]) -> list[list[str]]:
    """The rows of the table."""
    speeds = {row.case: row.tokens_per_second for row in rows if row.side == "bare"}
    lines: list[list[str]] = []
    for row in rows:
        if row.error:
            lines.append([row.case, row.side, "failed", *[""] * (len(HEADINGS) - 3)])
            continue
        bare, seen = speeds.get(row.case), row.activity
        heaviest = next(iter(seen.kernels.items()), None) if seen else None
        lines.append(
            [
                row.case,
                row.side,
                f"{row.tokens_per_second:,.0f}",
                f"{row.tokens_per_second / bare:.3f}" if bare else "",
                "" if row.mfu is None else f"{row.mfu:.1%}",
                _gib(row.peak_bytes),
                _gib(row.planned_bytes),
                f"{row.first_seconds:.0f}",
                f"{seen.idle:.1%}" if seen else "",
                f"{seen.longest_gap * 1e3:.2f}" if seen else "",
                f"{seen.waits:g}" if seen else "",
                seen.attention[0][:36] if seen and seen.attention else "",
                f"{heaviest[0][:36]} {heaviest[1]:.0%}" if heaviest else "",
            ]
        )
    return lines


def _gib(count: int | None) -> str:
    return "" if count is None else f"{count / 2**30:.1f}"


def told(rows: Sequence[Row]) -> str:
    """The table, and what is to be said of its rows."""
    lines = [table(cells_of(rows), headings=HEADINGS), ""]
    lines += [f"{name}: {CASES[name].meaning}" for name in dict.fromkeys(r.case for r in rows)]
    for row in rows:
        title = f"{row.case} {row.side}"
        if row.error:
            lines.append(f"FAILED {title}: {row.error}")
        lines += [f"note {title}: {note}" for note in row.notes]
    return "\n".join(lines)


def device_of(device: str) -> dict[str, str]:
    """What the device is, in the driver's words; nothing is set."""
    if device == "cpu":
        return {"name": f"CPU ({platform.machine()}, {os.cpu_count()} cores)"}
    command = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetpointError(
            f"no GPU: nvidia-smi: {error}. Valid: --device cpu --small, on a CPU"
        ) from error
    return dict(zip(ASKED.split(","), text.splitlines()[0].split(", "), strict=True))


def write_tokens(path: Path, count: int) -> None:
    """Random bytes as tokens, in documents of log-normal lengths."""
    random = np.random.default_rng(1)
    tokens = random.integers(0, 256, count, dtype=np.uint16)
    lengths = (700 * random.lognormal(0.0, 0.8, count // 100)).astype(np.int64).clip(4)
    ends = lengths.cumsum()
    tokens[ends[ends < count]] = SEPARATOR
    np.save(path, tokens)


def main(given: Sequence[str] | None = None) -> int:
    chosen = options(
        __doc__, given, only=[""], sides=[*SIDES], device=("cuda", "cpu"), small=False,
        minutes=7.8, limit=120.0, peak_flops=0.0, json=None,
    )  # fmt: skip
    if unknown := {*chosen.only} - {*CASES}:
        raise SystemExit(f"there is no case {unknown.pop()!r}. Valid: {', '.join(CASES)}")
    if chosen.device == "cpu" and not chosen.small:
        raise SystemExit("--device cpu: valid with --small only; the cases are for a GPU")
    try:
        device = device_of(chosen.device)
    except SetpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    known = peak_of(device["name"])
    peak = chosen.peak_flops or (known.flops if known else None)
    names = chosen.only or list(CASES)
    todo = [
        (name, side)
        for name in names
        for side in chosen.sides
        if side == "setpoint" or CASES[name].beside
    ]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        until = began + 60 * chosen.minutes
        bench = Bench(Path(folder), chosen.device, chosen.small, peak, until, chosen.limit)
        write_tokens(Path(folder) / "tokens.npy", 100_000 if chosen.small else 4_000_000)
        # What is small is not there to be timed.
        with ThreadPoolExecutor(2 if chosen.small else 1) as pool:
            rows: list[Row] = []
            for row in pool.map(lambda each: bench.run(*each), todo):
                rows.append(row)
                speed = row.error or f"{row.tokens_per_second:,.0f} tokens/s"
                print(f"{row.case} {row.side}: {speed} ({row.seconds:.0f} s)", flush=True)
    version = metadata.version("torch")
    print(f"\n{told(rows)}\n\n{', '.join(device.values())}; torch {version}")
    if chosen.json is not None:
        figures = {
            "device": device,
            "peak_flops": peak,
            "torch": version,
            "python": platform.python_version(),
            "small": chosen.small,
            "seconds": time.monotonic() - began,
            "rows": [
                {**asdict(row), "activity": row.activity and row.activity._asdict()} for row in rows
            ],
        }
        Path(chosen.json).write_text(json.dumps(figures, indent=1))
    return 1 if any(row.error for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
