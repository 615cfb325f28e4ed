"""What everything that happens in a session has to do with: the open run, its start and its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.resilience.signals import StopRequest
from setpoint.shapes.logged import MetricLog
from setpoint.shapes.scoring import Score
from setpoint.track.chain import Chain
from setpoint.track.events import EventLog
from setpoint.track.heartbeat import Heart
from setpoint.track.jsonl import read_jsonl
from setpoint.track.progress_log import LoggedProgress
from setpoint.track.run_directory import RunDirectory
from setpoint.track.trackers import Trackers
from setpoint.train.build.components import Components
from setpoint.train.build.utilization import Utilization
from setpoint.train.config import Job
from setpoint.train.contract import Accepted
from setpoint.train.evaluation.best_metric import BestMetric
from setpoint.train.evaluation.config import HELD_OUT
from setpoint.train.evaluation.evaluate import Scores
from setpoint.train.metrics import LossMean
from setpoint.train.position import Position
from setpoint.train.record.frozen import FrozenParameters
from setpoint.train.record.load import Loaded
from setpoint.train.record.ranks import SharedStore
from setpoint.train.record.state import States
from setpoint.train.record.uploading import Cadence

if TYPE_CHECKING:
    from setpoint.track.system import SystemSampler


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is open for training: its directory is locked, and it has been compared.

    Arguments:
        job: as it was given, with its seed drawn.
        record: the files that record the job; making them takes several ms.
        accepted: what differs from the record; None for a new run.
        environment: what differs from the environment that the record names.
        began: when this session did, in seconds since 1970.
        heart: writes the heartbeat of this rank; None where none is asked for.
        frozen: the parameters that checkpoints may leave out.
        system: samples the use of the machine; None where this rank does not.
        objects: classes of the callbacks that are objects of a program, and in no record.
        uploads: what sends checkpoints to a URL; None where nothing is sent, or another rank does.
    """

    job: Job
    record: Mapping[str, str]
    parts: Components
    directory: RunDirectory
    store: SharedStore
    events: EventLog
    progress: LoggedProgress
    trackers: Trackers
    chain: Chain
    stop: StopRequest
    accepted: Accepted | None
    environment: dict[str, Any]
    utilization: Utilization
    began: float
    frozen: FrozenParameters
    heart: Heart | None = None
    uploads: Cadence | None = None
    system: SystemSampler | None = None
    objects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Where a session begins.

    Arguments:
        resumed_at: the step of the checkpoint; None without one.
        identity: the job that the weights are of: `Run.job`, or that of the record where nothing
            is left to train, so that what was accepted has no effect.
        loaded: what `checkpoint.load` gave a run without checkpoints of its own; None otherwise.
        ended: why nothing is left to train before the duration is over; None if it is not so.
        is_over: whether nothing is left to train.
    """

    position: Position
    resumed_at: int | None
    identity: Job
    best: BestMetric
    mean: LossMean
    metrics: MetricLog
    states: States
    ended: str | None
    is_over: bool
    loaded: Loaded | None = None


ENDED = {0: "done", 75: "stopped with a checkpoint", 130: "interrupted"}


@dataclass(frozen=True, slots=True, repr=False)
class Outcome:
    """How a run ended.

    Arguments:
        status: the exit status: 0 done, 75 preempted, 130 interrupted.
        job: see `Start.identity`.
        loss: the mean training loss of the last row of metrics; None if none has been written.
        loss_steps: that it is the mean of.
        scores: of the last evaluation by the name of the data set; empty if there was none.
        cause: what has stopped the session from outside; empty if nothing has.
        reason: why training ended before its duration was over; None if it did not.
        head: of the chain of hashes over its rows and checkpoints; None on other than the main
            rank.
    """

    directory: Path
    status: int
    job: Job
    started: Position
    ended: Position
    loss: float | None
    loss_steps: int
    scores: Scores
    reason: str | None
    cause: str
    head: str | None
    parts: Components

    def __repr__(self) -> str:
        words = [f"{self.directory}: {ENDED.get(self.status, f'status {self.status}')}"]
        words.append(f"at step {self.ended.step}")
        if self.score is not None:
            words.append(f"held-out loss {self.score.loss:.4f}")
        return f"Outcome({', '.join(words)})"

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, of all sessions of the run.

        Returns:
            a row for each log and each evaluation, which `kind` tells apart; empty where the
            tracker `jsonl` writes none.
        """
        path = RunDirectory(self.directory, None, False).metrics
        return read_jsonl(path, damaged=[]) if path.exists() else []

    @property
    def score(self) -> Score | None:
        """How well held-out text is predicted at the end, if that was evaluated."""
        return self.scores.get(HELD_OUT)
