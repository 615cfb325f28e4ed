"""One process's part of a run: from the record and the checkpoint to the loop and the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from setpoint import __version__
from setpoint.checkpoint.loading import Checkpoint
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import RunError, SetpointError, resolve
from setpoint.config.added import added_sections
from setpoint.config.fingerprint import fingerprint
from setpoint.config.overridden import overridden
from setpoint.config.record import read_record
from setpoint.config.verify import cautions_of
from setpoint.config.walk import dropped
from setpoint.model.config import Transformer
from setpoint.model.size import estimate_size
from setpoint.resilience.signals import StopRequest
from setpoint.track.accelerators import peak_of
from setpoint.track.events import EventLog
from setpoint.track.jsonl import JsonlWriter, read_jsonl
from setpoint.track.progress import make_progress
from setpoint.track.progress_log import LoggedProgress
from setpoint.track.run_directory import RunDirectory
from setpoint.train.build import Parts
from setpoint.train.callback import Callback
from setpoint.train.callbacks.experts import ExpertsCallback
from setpoint.train.callbacks.judge import JudgeCallback
from setpoint.train.callbacks.log import LogCallback, Tracker
from setpoint.train.callbacks.record import RecordCallback
from setpoint.train.callbacks.save import SaveCallback
from setpoint.train.config import Job
from setpoint.train.contract import Accepted, changed_options, describe_accepted, describe_idle
from setpoint.train.evaluate import Score
from setpoint.train.loop import Loop
from setpoint.train.memory import enough_memory
from setpoint.train.position import Position, is_over
from setpoint.train.record import (
    compare_with_record,
    keep_diffs,
    write_config,
    write_environment,
)
from setpoint.train.state import restore


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Arguments:
        directory: where its record lies.
        status: the exit status: 0 done, 75 preempted, 130 interrupted.
        job: what the run is of: the job as it was given, or that of the record where nothing was
            left to train and so nothing accepted.
        started, ended: the positions at the beginning and the end of this session.
        score: the last evaluation of the run, if there was one.
        parts: the objects at the end.
    """

    directory: Path
    status: int
    job: Job
    started: Position
    ended: Position
    score: Score | None
    parts: Parts


def check_resume(job: Job, path: Path) -> None:
    """Hold a run directory against `checkpoint.resume`.

    Arguments:
        job: the resolved configuration.
        path: the directory, which need not exist.

    Raises:
        SetpointError: if there are checkpoints and must be none, or the other way round.
    """
    steps = CheckpointStore(path / "checkpoints").steps
    if job.checkpoint.resume == "never" and steps:
        raise SetpointError(
            f"checkpoint.resume = never, but {path} holds checkpoints; choose another --name, or "
            f"--checkpoint.resume auto to go on"
        )
    if job.checkpoint.resume == "must" and not steps:
        raise SetpointError(f"checkpoint.resume = must, but {path} holds no checkpoint")


class Session:
    """Prepares, runs and closes a loop in a run directory.

    Arguments:
        job: the resolved configuration.
        parts: the objects to train with, at the start of the run.
        run: the directory, locked.
        stop: whether somebody has asked to stop.
        accept: fields and sections of what is learned that may differ from the record.
    """

    def __init__(
        self,
        job: Job,
        parts: Parts,
        run: RunDirectory,
        stop: StopRequest,
        accept: Sequence[str] = (),
    ) -> None:
        self.job = job
        self.accept = accept
        self.parts = parts
        self.directory = run
        self.stop = stop
        self.events = EventLog(run.events)
        steps = job.duration.in_unit("steps")
        total = None if steps is None else int(steps)
        shown = make_progress(job.tracking.progress, total_steps=total)
        self.progress = LoggedProgress(shown, run.logs / "rank-0.log", total)
        section = job.checkpoint
        self.store = CheckpointStore(
            run.checkpoints, keep=section.keep, keep_best=section.keep_best
        )

    def run(self) -> Outcome:
        """Train until the end or a request to stop.

        Returns:
            how it ended.

        Raises:
            SetpointError: if the record or the checkpoint does not belong to this job.
            RunError: if the run itself fails.
        """
        with ExitStack() as files:
            for opened in (self.events, self.progress):
                files.callback(opened.close)
            return self._run(files)

    def _run(self, files: ExitStack) -> Outcome:
        added = self.added()
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
        position, offset = Position(), 0
        if checkpoint is not None:
            renewed = changed_options(known[0]) if known else ()
            position = restore(self.parts, checkpoint, renewed)
            offset = checkpoint.state["metrics_offset"]
            self.store.discard_after(checkpoint.step)
        over = is_over(self.job.duration, position)
        resumed_at = None if checkpoint is None else checkpoint.step
        job = self.job
        if over and known is not None and known[0].learned:
            # What is learned may differ by name, and is not learned any more.
            job = resolve(read_record(Job, str(self.directory.path))[0])
        self.keep_record(job, known, resumed_at, changes=not over)
        trackers = self.trackers(position, offset)
        metrics = next((t for t in trackers if isinstance(t, JsonlWriter)), None)
        if metrics is not None:
            files.callback(metrics.close)
        judge = JudgeCallback(trackers, self.progress)
        experts = ExpertsCallback()
        log = LogCallback(
            trackers, self.progress, self.flops_per_token(), self.peak_flops(), experts.metrics
        )
        save = SaveCallback(self.store, metrics, self.events, judge, offset)
        callbacks = [experts, log, judge, save, *added]
        if known is not None and not over:
            # Before a checkpoint of what was trained with the change is saved.
            callbacks.insert(0, RecordCallback(partial(self.change_record, known[0])))
        loop = Loop(self.job, self.parts, callbacks, self.stop, position)
        try:
            with self.progress, enough_memory(self.job):
                loop.run()
        except Exception as error:
            reason = str(error) if isinstance(error, SetpointError) else repr(error)
            self.events.write("fault", step=loop.position.step, error=reason)
            raise
        status = 0 if is_over(self.job.duration, loop.position) else self.stop.status
        self.events.write("end", step=loop.position.step, status=status)
        score = judge.score or self.score_at(loop.position.step)
        path = self.directory.path
        return Outcome(path, status, job, position, loop.position, score, self.parts)

    def added(self) -> list[Callback]:
        """Build what the sections describe that packages have added to the job.

        Returns:
            their callbacks, which run after Setpoint's own.

        Raises:
            SetpointError: if a section builds something else.
        """
        built: list[Callback] = []
        for name, section in added_sections(self.job).items():
            callback = section.build(job=self.job, parts=self.parts, run=self.directory)
            if not isinstance(callback, Callback):
                raise SetpointError(
                    f"{name}: an added section must build a setpoint.train.callback.Callback; "
                    f"{type(section).__name__} built a {type(callback).__name__}"
                )
            built.append(callback)
        return built

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

    def keep_record(
        self,
        job: Job,
        known: tuple[Accepted, dict[str, Any]] | None,
        resumed_at: int | None,
        changes: bool,
    ) -> None:
        """Write the record of a new run, or the event of a session more.

        Arguments:
            job: what the run is of.
            known: what `compare_with_record` returned; None for a new run.
            resumed_at: the step of the checkpoint; None without one.
            changes: whether something is left to train, so that what is accepted has an effect.
        """
        start: dict[str, Any] = {"fingerprint": fingerprint(job), "version": __version__}
        if self.parts.pretrained is not None:
            start["pretrained"] = self.parts.pretrained
        cautions = cautions_of(job)
        for caution in cautions:
            self.progress.note(f"caution: {caution.line()}")
        for line in overridden(self.job):
            self.progress.note(f"overridden: {line}")
        if cautions:
            start["cautions"] = [caution.to_json() for caution in cautions]
        if known is None:
            for value in dropped(self.job):
                self.progress.note(f"dropped: {value}")
            self.events.write("start", step=0, **start)
            write_environment(self.directory, self.parts)
            write_config(self.directory, self.job)
            return
        accepted, environment = known
        if changes:
            notes, kept = describe_accepted(accepted), accepted.differences
        else:
            nothing = "nothing is left to train" + "; nothing accepted" * accepted.learned
            finished = f"{self.directory.path} is finished at step {resumed_at}; {nothing}"
            notes, kept = [*describe_idle(accepted), finished], []
        for line in notes:
            self.progress.note(line)
        # Before the record changes: after a kill in between, the difference would be lost.
        self.events.write(
            "start" if resumed_at is None else "resume",
            step=resumed_at or 0,
            **start,
            accepted=[difference.to_json() for difference in kept],
            environment=keep_diffs(self.directory, environment),
        )

    def change_record(self, accepted: Accepted) -> None:
        """Write today's configuration into the record of a run that has trained with it.

        Arguments:
            accepted: what differs from the record so far.
        """
        if any(item.path == "evaluation.sequences" for item in accepted.differences):
            # Losses on other sequences cannot be compared; the next evaluation is the best.
            self.store.forget_best()
        write_config(self.directory, self.job)

    def trackers(self, position: Position, offset: int) -> list[Tracker]:
        """Build the trackers, and drop the rows of steps that were lost with a process.

        Arguments:
            position: where the loop goes on.
            offset: how long `metrics.jsonl` was when the checkpoint was saved.

        Returns:
            the trackers.
        """
        built = [
            tracker.build(run_directory=self.directory) for tracker in self.job.tracking.trackers
        ]
        for tracker in built:
            if isinstance(tracker, JsonlWriter):
                if tracker.offset < offset:
                    self.progress.note(f"{tracker.path} lacks rows of steps before {position.step}")
                tracker.truncate(min(offset, tracker.offset))
        return built

    def score_at(self, step: int) -> Score | None:
        """Look up an evaluation of the sessions before, for a run that is finished already.

        Arguments:
            step: where the run stands.

        Returns:
            the score; None if nothing was evaluated or logged there.
        """
        path = self.directory.metrics
        rows = read_jsonl(path) if path.exists() else []
        for row in reversed(rows):
            if row.get("kind") == "evaluation" and row["step"] == step:
                loss, bits = row["held_out_loss"], row["held_out_bits_per_byte"]
                return Score(loss, bits, row["held_out_tokens"])
        return None

    def flops_per_token(self) -> float | None:
        """Compute how many operations it takes to train on a token.

        Returns:
            the number; None for models that do not say.
        """
        if not isinstance(self.job.model, Transformer):
            return None
        return estimate_size(
            self.job.model,
            vocab_size=self.parts.tokenizer.vocab_size,
            sequence_length=self.job.batch.sequence_length,
        ).flops_per_token

    def peak_flops(self) -> float | None:
        """Look up how many operations per second the device can do.

        Returns:
            the number; None where nobody promises any.
        """
        if self.parts.device.type != "cuda":
            return None
        peak = peak_of(torch.cuda.get_device_name(self.parts.device))
        return peak.flops if peak else None
