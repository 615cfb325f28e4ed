"""One process's part of a run: from the record and the checkpoint to the loop and the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from setpoint.checkpoint.loading import Checkpoint
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import RunError, SetpointError, read_record, resolve
from setpoint.resilience.signals import StopRequest, named
from setpoint.track.events import EventLog
from setpoint.track.jsonl import JsonlWriter, read_jsonl
from setpoint.track.progress import Progress, make_progress
from setpoint.track.progress_log import LoggedProgress
from setpoint.track.run_directory import RunDirectory
from setpoint.train.build.companions import companions_in
from setpoint.train.build.components import Components, data_line
from setpoint.train.build.utilization import Utilization, utilization_of
from setpoint.train.callbacks.build import Surroundings, added_callbacks, build_callbacks
from setpoint.train.callbacks.log import Tracker
from setpoint.train.callbacks.record import RecordCallback
from setpoint.train.config import Job
from setpoint.train.evaluation.best_metric import STATE, BestMetric, best_metric_of, changes_measure
from setpoint.train.evaluation.config import HELD_OUT
from setpoint.train.evaluation.score import Score, Scores, scores_in
from setpoint.train.record.contract import runs_of_other_lengths
from setpoint.train.record.environment import (
    Beginning,
    compare_with_record,
    keep_record,
    write_config,
    write_data,
)
from setpoint.train.record.outlook import format_newest, outlook
from setpoint.train.record.state import restore
from setpoint.train.step.errors import explain
from setpoint.train.step.loop import Loop
from setpoint.train.step.out_of_memory import explain_oom
from setpoint.train.step.position import Position, is_over


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Arguments:
        status: the exit status: 0 done, 75 preempted, 130 interrupted.
        job: what the run is of: the job as it was given, or that of the record where nothing was
            left to train and so nothing accepted.
        scores: of the last evaluation by the name of the data set; empty if there was none.
        reason: why training ended before its duration was over; None if it did not.
    """

    directory: Path
    status: int
    job: Job
    started: Position
    ended: Position
    scores: Scores
    reason: str | None
    parts: Components

    @property
    def score(self) -> Score | None:
        """How well held-out text is predicted at the end, if that was evaluated."""
        return self.scores.get(HELD_OUT)


def check_resume(job: Job, path: Path) -> None:
    """Hold a run directory against `checkpoint.resume`.

    Raises:
        SetpointError: if there are checkpoints and must be none, or the other way round; or if
            what was trained there is gone.
    """
    steps, resume = CheckpointStore(path / "checkpoints").steps, job.checkpoint.resume
    if resume == "never" and steps:
        raise SetpointError(
            f"checkpoint.resume = never, but {path} holds checkpoints; choose another --name, or "
            f"--checkpoint.resume auto to go on"
        )
    if resume == "must" and not steps:
        raise SetpointError(f"checkpoint.resume = must, but {path} holds no checkpoint")
    gone = None if steps or resume == "restart" else what_is_gone(path)
    if gone is not None:
        raise SetpointError(
            f"{path} {gone}, so that there is nothing to go on from. --checkpoint.resume restart "
            f"trains it again from step 0 and keeps its metrics beside; another --name makes a run "
            f"of its own"
        )


def what_is_gone(path: Path) -> str | None:
    """Whether a run without checkpoints has trained what is not to be overwritten.

    Returns:
        what it had come to, in words; None for a run that never saved anything on its way: it was
        killed before its first checkpoint, and starts again.
    """
    log = path / "events.jsonl"
    rows = read_jsonl(log, damaged=[]) if log.exists() else []
    starts = [number for number, row in enumerate(rows) if row.get("event") == "restart"]
    rows = rows[starts[-1] :] if starts else rows
    saves = [row for row in rows if row.get("event") == "save"]
    ends = [row for row in rows if row.get("event") == "end" and row.get("status") == 0]
    if ends:
        kept = "its checkpoints are gone" if saves else "it saved none (checkpoint.last = none)"
        return f"finished at step {ends[-1].get('step')}, and {kept}"
    if saves:
        return f"was trained to step {saves[-1].get('step')}, and its checkpoints are gone"
    return None


def total_steps(job: Job) -> int | None:
    """After how many steps a run ends.

    Returns:
        the number; None if something else ends it.
    """
    steps = job.duration.in_unit("steps")
    return None if steps is None else int(steps)


def progress_of(job: Job) -> Progress:
    """Choose how a run is shown."""
    return make_progress(job.tracking.progress, total_steps=total_steps(job))


class Session:
    """Prepares, runs and closes a loop in a run directory.

    Arguments:
        accept: fields and sections of what is learned that may differ from the record.
        shown: shows the run to people; None: as the job says.
    """

    def __init__(
        self,
        job: Job,
        parts: Components,
        run: RunDirectory,
        stop: StopRequest,
        accept: Sequence[str] = (),
        shown: Progress | None = None,
    ) -> None:
        self.job = job
        self.accept = accept
        self.parts = parts
        self.directory = run
        self.stop = stop
        self.events = EventLog(run.events)
        shown = shown if shown is not None else progress_of(job)
        self.progress = LoggedProgress(shown, run.logs / "rank-0.log", total_steps(job))
        section = job.checkpoint
        self.store = CheckpointStore(
            run.checkpoints,
            keep=section.keep,
            keep_best=section.keep_best,
            on_set_aside=self._tell_set_aside,
        )

    def run(self) -> Outcome:
        """Train until the end or a request to stop.

        Raises:
            SetpointError: if the record or the checkpoint does not belong to this job.
            RunError: if the run itself fails.
        """
        with ExitStack() as ending:
            for opened in (self.events, self.progress):
                ending.callback(opened.close)
            return self._run(ending)

    def _run(self, ending: ExitStack) -> Outcome:
        added = added_callbacks(self.job, self.parts, self.directory)
        fresh = self.directory.is_new and not self.store.steps
        known = None
        if not fresh:
            known = compare_with_record(self.directory, self.job, self.parts, self.accept)
        checkpoint = self.newest_checkpoint()
        if checkpoint is None and self.job.model.pretrained and self.parts.pretrained is None:
            raise RunError(
                f"the checkpoints of {self.directory.path} went away while the run was being set "
                f"up, and without them it has no weights to go on with; run it again to start over"
            )
        if checkpoint is None and known is not None:
            self.start_again()
        elif known is None:
            for line in runs_of_other_lengths(self.job, self.directory.path):
                self.progress.note(line)
        position, state = self.go_on(checkpoint)
        best, differs = best_metric_of(self.job, self.parts, state)
        over = is_over(self.job.duration, position)
        ended = None if over else best.stop_reason(self.job.evaluation)
        over = over or ended is not None
        job = self.job
        if over and known is not None and known[0].learned:
            # What is learned may differ by name, and is not learned any more.
            job = resolve(read_record(Job, str(self.directory.path))[0])
        vocab_size = self.parts.tokenizer.vocab_size
        use = utilization_of(self.job, self.parts.model, vocab_size, self.parts.device)
        begun = Beginning(job, self.job, known, checkpoint and checkpoint.step, over, ended, use)
        if not over:
            self.progress.note(data_line(self.job, self.parts))
        keep_record(self.directory, self.parts, self.events, self.progress, begun)
        around = self.surroundings(position, state, best, ending, use)
        callbacks, evaluation = build_callbacks(around)
        callbacks += added
        if known is not None and not over:
            # Before a checkpoint of what was trained with the change is saved.
            anew = bool(differs) or (STATE not in state and changes_measure(known[0]))
            callbacks.insert(
                0, RecordCallback(partial(self.change_record, anew, bool(known[0].data)))
            )
            if differs:
                changed = ", ".join(differs)
                self.progress.note(f"the best is sought anew; its measure has changed: {changed}")
        loop = Loop(self.job, self.parts, callbacks, self.stop, position)
        root = self.store.root
        self.stop.newest = partial(format_newest, root)
        self.stop.outlook = partial(outlook, root, position.step)
        if self.stop.is_deaf:
            self.progress.note(
                "training runs in a thread that is not the main one, where Python takes no "
                "signals: StopRequest.request() stops it"
            )
        if ended is not None:
            loop.end(ended)
        self.train(loop)
        status = self.status_of(loop, best)
        scores = evaluation.scores or self.scores_at(loop.position.step)
        return Outcome(
            directory=self.directory.path,
            status=status,
            job=job,
            started=position,
            ended=loop.position,
            scores=scores,
            reason=loop.ended,
            parts=self.parts,
        )

    def go_on(self, checkpoint: Checkpoint | None) -> tuple[Position, Mapping[str, Any]]:
        """Bring the parts to where the run stands.

        Arguments:
            checkpoint: the newest; None for a run without.

        Returns:
            the position, and the rest of what the checkpoint says; empty without one.
        """
        if checkpoint is None:
            return Position(), {}
        position = restore(
            # The record has been held against the data: a kill may lie between it and a checkpoint.
            self.job,
            self.parts,
            checkpoint,
            other_data=True,
        )
        # What the run began with; files may have moved or changed since.
        self.parts.companions = companions_in(checkpoint.path) or self.parts.companions
        self.store.set_aside_after(checkpoint.step)
        return position, checkpoint.state

    def start_again(self) -> None:
        """Begin a run anew that has a record and no checkpoint."""
        path = self.directory.path
        gone = what_is_gone(path)
        if gone is None:
            self.progress.note(f"{path} has no checkpoint yet: it starts again at step 0")
            return
        metrics, to = self.directory.metrics, None
        if metrics.exists():
            to = next(
                place
                for number in count(1)
                if not (place := metrics.with_name(f"metrics.{number}.jsonl")).exists()
            )
            metrics.rename(to)
        kept = f"; its metrics are kept as {to.name}" if to is not None else ""
        self.progress.note(f"{path} {gone}: it starts over at step 0{kept}")
        self.events.write("restart", step=0, metrics=to and to.name)

    def surroundings(
        self,
        position: Position,
        state: Mapping[str, Any],
        best: BestMetric,
        ending: ExitStack,
        use: Utilization,
    ) -> Surroundings:
        """Gather what callbacks have to do with, and open the trackers."""
        trackers = self.trackers(position, state.get("metrics_offset", 0))
        for tracker in trackers:
            close = getattr(tracker, "close", None)
            if close is not None:
                ending.callback(close)
        return Surroundings(
            job=self.job,
            parts=self.parts,
            run=self.directory,
            store=self.store,
            events=self.events,
            progress=self.progress,
            trackers=trackers,
            state=state,
            best=best,
            use=use,
        )

    def train(self, loop: Loop) -> None:
        """Run the loop, and record what ends it by force."""
        try:
            with self.progress, explain_oom(self.job):
                loop.run()
        except Exception as error:
            told = explain(error) or error
            reason = str(told) if isinstance(told, SetpointError) else repr(told)
            self.events.write("fault", step=loop.position.step, error=reason)
            if told is not error:
                raise told from error
            raise

    def status_of(self, loop: Loop, best: BestMetric) -> int:
        """Record how the session ended."""
        over = loop.ended is not None or is_over(self.job.duration, loop.position)
        # A run whose last evaluation was cut short is not finished.
        status = 0 if over and best.due is None else self.stop.status
        why = {} if loop.ended is None else {"reason": loop.ended}
        if status and self.stop.signal is not None:
            why["signal"] = named(self.stop.signal)
        self.events.write("end", step=loop.position.step, status=status, **why)
        return status

    def newest_checkpoint(self) -> Checkpoint | None:
        """Load the newest whole checkpoint, naming the damaged ones that are passed over.

        Returns:
            the checkpoint; None if the run has none.

        Raises:
            SetpointError: if all are damaged, or `checkpoint.resume` forbids or demands one.
        """
        # Another process may have trained here while this one was building its parts.
        check_resume(self.job, self.directory.path)
        self.store.prepare()

        def report(path: Path, reason: str) -> None:
            self.progress.note(f"{path.name} is damaged and is passed over: {reason}")
            self.events.write("damaged", checkpoint=path.name, reason=reason)

        found = self.store.load("auto", on_damaged=report)
        if found is not None:
            self.progress.note(f"resuming {self.directory.path} at step {found.step}")
        return found

    def _tell_set_aside(self, before: Path, now: Path) -> None:
        self.progress.note(f"{before.name} is set aside as {now.name}, with all its files")
        self.events.write("set_aside", checkpoint=before.name, to=now.name)

    def change_record(self, anew: bool, data: bool) -> None:
        """Write today's configuration into the record of a run that has trained with it.

        Arguments:
            anew: whether today's metric cannot be compared with that of the best checkpoint; the
                next evaluation is the best then.
        """
        if anew:
            self.store.forget_best()
        if data:
            write_data(self.directory, self.parts)
        write_config(self.directory, self.job)

    def trackers(self, position: Position, offset: int) -> list[Tracker]:
        """Build the trackers, and drop the rows of steps that were lost with a process.

        Arguments:
            offset: how long `metrics.jsonl` was when the checkpoint was saved.
        """
        built = [
            tracker.build(run_directory=self.directory) for tracker in self.job.tracking.trackers
        ]
        for tracker in built:
            if isinstance(tracker, JsonlWriter):
                if tracker.offset < offset:
                    self.progress.note(f"{tracker.path} lacks rows of steps before {position.step}")
                tracker.truncate(min(offset, tracker.offset))
            elif position.step and hasattr(tracker, "rewind"):
                tracker.rewind(position.step)
        return built

    def scores_at(self, step: int) -> Scores:
        """Look up an evaluation of the sessions before, for a run that is finished already.

        Returns:
            the scores; none if nothing was evaluated or logged there.
        """
        path = self.directory.metrics
        rows = read_jsonl(path) if path.exists() else []
        for row in reversed(rows):
            if row.get("kind") == "evaluation" and row["step"] == step:
                return scores_in(row)
        return {}
