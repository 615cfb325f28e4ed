"""A job that trains in a second on text that can be learnt, and what the tests ask of its runs."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from setpoint.config.composition import compose
from setpoint.config.values.user_code import allow_imports
from setpoint.resilience.signals import StopRequest
from setpoint.track.progress import Progress
from setpoint.track.trackers import Trackers
from setpoint.train.build.components import Components, build_components
from setpoint.train.callbacks.log import TIMING
from setpoint.train.config import Job
from setpoint.train.evaluation.scores import evaluation_state_of
from setpoint.train.loop import Callback, Loop
from setpoint.train.position import Position
from setpoint.train.row_metrics import LossMean
from setpoint.train.run import train
from setpoint.train.run_state import States, states_of
from setpoint.train.verdict import StepResult

allow_imports(__name__)
TABLE = ("model=import", f"model.target={__name__}.Table")
PRINTING = ("model=import", f"model.target={__name__}.Printing")
TEXT = """
name = "small"
duration = "30 steps"

[model]
type = "transformer"
dim = 16
layers = 1
heads = 2
dropout = 0.1

[data]
held_out = 0.1
sources = [{ type = "random", documents = 40, length = 200, alphabet = 8 }]

[batch]
micro_size = 2
accumulation = 2
sequence_length = 16

[optimizer]
lr = 1e-2

[checkpoint]
every = "4 steps"

[evaluation]
every = "3 steps"
sequences = 12

[tracking]
every = "1 steps"
progress = "lines"
report = false  # a seventh of the time of most runs here
"""


def write_config(folder: Path, without: tuple[str, ...] = ()) -> Path:
    """Write the job as a file."""
    folder.mkdir(exist_ok=True)
    path = folder / "small.toml"
    lines = TEXT.splitlines(keepends=True)
    # At once: ranks that share a folder write it while others read it.
    draft = folder / f"small-{os.getpid()}"
    draft.write_text("".join(line for line in lines if line.split(" ")[0] not in without))
    return draft.replace(path)


def small_job(folder: Path, *flags: str, without: tuple[str, ...] = ()) -> Job:
    """Resolve the job."""
    quiet = [f"workspace={folder / 'runs'}", "tracking.progress=none"]
    return compose(Job, str(write_config(folder, without)), flags=[*quiet, *flags]).resolve()


def loop_of(job: Job, *callbacks: Callback, components: Components | None = None) -> Loop:
    """The loop of a job at its first step, without a run directory."""
    parts = build_components(job) if components is None else components
    return Loop(job, parts, list(callbacks), StopRequest(), Position())


def stepped(job: Job) -> Components:
    """The components of a job after its loop has run."""
    loop = loop_of(job)
    loop.run()
    return loop.components


class Steps(Callback):
    """Keeps the results of all steps."""

    def __init__(self) -> None:
        self.seen: list[StepResult] = []

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """See `Callback.after_step`."""
        self.seen.append(result)


class Notes(Progress):
    """Keeps notes."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        self.seen.append(text)


class Table(nn.Module):
    """A model of a user's own: a table of logits."""

    def __init__(self, vocab_size: int, dropout: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.table = self.token_embedding = nn.Embedding(vocab_size, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up logits."""
        return self.table(tokens) * self.scale


class Printing(Table):
    """A model that prints, which no graph can hold."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up logits."""
        logits = self.table(tokens)
        print(end="")
        return logits * 2


class Killed(BaseException):
    """Ends a session as a kill does: nothing is saved, and nothing is recorded."""


def states(job: Job, components: Components) -> States:
    """All that a checkpoint of a run without rows and evaluations holds."""
    return states_of(job, components, evaluation_state_of(job, components), LossMean(), Trackers())


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run without what depends on the machine and the hour."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMING} for line in lines]


def train_rows(run: Path) -> list[dict[str, Any]]:
    """The rows of training of a run."""
    return [row for row in rows(run) if row["kind"] == "train"]


def events(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The events of a run."""
    found = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [row for row in found if kind in (None, row["event"])]


def essence(run: Path) -> dict[str, Any]:
    """All of a run that must not depend on how often it was stopped or killed."""
    found: dict[str, Any] = {"rows": rows(run)}
    there = [name for name in ("latest", "best") if (run / "checkpoints" / name).exists()]
    for pointer in there:
        name = (run / "checkpoints" / pointer).read_text().strip()
        folder = run / "checkpoints" / name
        state = json.loads((folder / "state.json").read_text())
        # Files of metrics hold times, and so many digits as they happen to have.
        del state["position"]["seconds"]
        state.pop("trackers", None)
        found[pointer] = name
        found[f"{pointer} state"] = state
        for path in sorted(folder.glob("*.safetensors")):
            found[f"{pointer} {path.name}"] = path.read_bytes()
    # model and optimizer of each, and what else some optimizers and formats need
    assert there
    assert len([key for key in found if key.endswith(".safetensors")]) >= 2 * len(there)
    return found


def assert_same_run(run: Path, oracle: Path) -> None:
    """Compare two runs bit by bit."""
    ours, theirs = essence(run), essence(oracle)
    assert ours.keys() == theirs.keys()
    different = [key for key in ours if ours[key] != theirs[key]]
    assert not different, different


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every file of a directory with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


class Kept:
    """A run that several tests go on with, each from what it was at its end."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.directory = train(small_job(folder, *flags)).directory
        self._copy = folder / "copy"
        shutil.copytree(self.directory.parent, self._copy)

    def again(self) -> Path:
        """The directory of the run, as it was."""
        shutil.rmtree(self.directory.parent)
        shutil.copytree(self._copy, self.directory.parent)
        return self.directory
