"""A session of a run: one object, from its first comparison to its last event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.shapes.scoring import Score
from setpoint.track.jsonl import readable_rows
from setpoint.track.run_directory import RunDirectory
from setpoint.train.build.assets import FallbackFiles
from setpoint.train.config import Job
from setpoint.train.contract import Accepted
from setpoint.train.evaluation.config import HELD_OUT
from setpoint.train.position import Position

if TYPE_CHECKING:
    from setpoint.checkpoint.store import CheckpointStore
    from setpoint.parallel.world import World
    from setpoint.resilience.signals import StopRequest
    from setpoint.shapes.logged import MetricLog
    from setpoint.track.jsonl import EventLog
    from setpoint.track.progress import LoggedProgress, Progress
    from setpoint.track.trackers import Trackers
    from setpoint.train.build.components import Components
    from setpoint.train.evaluation.scores import EvaluationState, Scores
    from setpoint.train.loop import Callback, Loop
    from setpoint.train.row_metrics import LossMean, Utilization
    from setpoint.train.run_state import FrozenParameters, States
    from setpoint.train.warm_start import Loaded

Stamp = tuple[int | None, tuple[int, ...]]
"""Modification time of a recorded configuration, and the steps of its checkpoints."""

STATUSES = {0: "done", 75: "stopped with a checkpoint", 130: "interrupted"}
"""Exit statuses in words."""


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """Session of a run; attributes set by later stages of `train` are unset until then.

    Arguments:
        job: the job, with its seed drawn.
        directory: the directory of the run.
        accept: fields and sections of the fingerprint that may differ from the record.
        stamp: state of the record and the checkpoints when they were compared.
        fallback: files read from a checkpoint because the originals are gone.
        files: the run directory, which must not be written before `open_directory` locks it.
        accepted: differences from the record; None for a new run.
    """

    # Set by `open_run`, which compares the job with the record.
    job: Job
    directory: Path
    accept: Sequence[str]
    stamp: Stamp
    fallback: FallbackFiles
    files: RunDirectory
    accepted: Accepted | None = None
    missing_checkpoints: str | None = None
    """Training lost with its checkpoints; None if nothing is lost."""
    world: World = field(init=False)
    stop: StopRequest = field(init=False)
    shown: Progress = field(init=False)
    """Progress display; `progress` writes a log as well."""
    began: float = field(init=False)
    """Start of this session, in seconds since 1970."""
    outer_callbacks: Sequence[Callback] = ()
    """Callbacks of operations and of the calling program."""
    program_callbacks: tuple[str, ...] = ()
    """Classes of callbacks passed as objects, which no record restores."""

    # Set by `build_components`.
    components: Components = field(init=False)

    # Set by `open_directory`, which locks the directory.
    record: Mapping[str, str] = field(init=False)
    """Files that record the job, by name; rendering them takes several ms."""
    store: CheckpointStore = field(init=False)
    events: EventLog = field(init=False)
    progress: LoggedProgress = field(init=False)
    trackers: Trackers = field(init=False)
    environment: dict[str, Any] = field(init=False)
    """Differences from the recorded environment."""
    utilization: Utilization = field(init=False)

    # Set by `resume`.
    started: Position = field(init=False)
    resumed_at: int | None = None
    """The step of the checkpoint; None without one."""
    identity: Job = field(init=False)
    """Job of the weights: `job`, or the recorded one if nothing is left to train, so that accepted
    differences have no effect."""
    frozen: FrozenParameters = field(init=False)
    """The parameters that checkpoints may leave out."""
    evaluations: EvaluationState = field(init=False)
    mean: LossMean = field(init=False)
    metrics: MetricLog = field(init=False)
    states: States = field(init=False)
    loaded: Loaded | None = None
    """The start from `checkpoint.load`; None without one."""
    had_nothing_left: bool = False
    """True if training was finished when the session began."""
    reason: str | None = None
    """Reason why training ended early; None if it did not."""
    loop: Loop | None = None

    # Set by `finish`.
    status: int = 0
    """The exit status: 0 done, 75 preempted, 130 interrupted."""
    final_position: Position = field(init=False)
    loss: float | None = None
    """The mean training loss of the last row of metrics; None if none has been written."""
    scores: Scores = field(default_factory=dict)
    """Of the last evaluation, by the name of the data set."""
    cause: str = ""
    """The signal or limit that stopped the session; empty if none did."""

    def __repr__(self) -> str:
        words = [f"{self.directory}: {STATUSES.get(self.status, f'status {self.status}')}"]
        if hasattr(self, "final_position"):
            words.append(f"at step {self.final_position.step}")
        if self.score is not None:
            words.append(f"held-out loss {self.score.loss:.4f} ({self.score.extent})")
        return f"Run({', '.join(words)})"

    @property
    def has_checkpoints(self) -> bool:
        """True if the run resumes from its own checkpoint."""
        return bool(self.stamp[1])

    @property
    def needs_initial_weights(self) -> bool:
        """True if initial weights are needed because no checkpoint contains all of them."""
        section = self.job.checkpoint
        return not self.has_checkpoints and (section.load is None or section.excludes_weights)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl from all sessions of the run.

        Returns:
            a row for each log and each evaluation, distinguished by `kind`; empty if the tracker
            `jsonl` writes none.
        """
        return readable_rows(RunDirectory(self.directory, None, False).metrics)

    @property
    def score(self) -> Score | None:
        """The final score of the held-out text; None if it was not evaluated."""
        return self.scores.get(HELD_OUT)
