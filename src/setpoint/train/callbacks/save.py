"""Callbacks that save checkpoints, or say that none is saved."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.checkpoint.folder import At, is_named
from setpoint.checkpoint.manifest import BASE
from setpoint.config import ImportedComponent
from setpoint.config.draft.walk import sections
from setpoint.config.schema.class_info import added_sections
from setpoint.files.tensor_file import DTYPES
from setpoint.train.evaluation.scores import Averages
from setpoint.train.loop import Callback, Phase
from setpoint.train.run_state import snapshot
from setpoint.units import DType, Period

if TYPE_CHECKING:
    from torch import Tensor

    from setpoint.train.callbacks.evaluate import EvaluateCallback
    from setpoint.train.loop import Loop
    from setpoint.train.session import Run
    from setpoint.train.verdict import StepResult


OURS = sys.stdlib_module_names | {"setpoint", "torch"}
"""Packages whose code changes weights only in the update of a step."""


class NoSaveCallback(Callback):
    """Warns that a run saves no checkpoints."""

    phase = Phase.KEEP

    def __init__(self, run: Run) -> None:
        self.progress = run.progress

    def start(self, loop: Loop) -> None:
        """Show a note before the first step."""
        self.progress.note(
            f"checkpoint.save = false: no checkpoint is saved, and training from step "
            f"{loop.position.step} on is lost when this process ends"
        )

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Allow an immediate stop, because no save is pending."""
        loop.stop.has_unsaved = False
        if loop.sync.saves_now:
            self.progress.note("SIGUSR2: no checkpoint is saved, as checkpoint.save = false")


class SaveCallback(Callback):
    """Saves periodically, after the last step, and when a stop is requested.

    Each checkpoint has a copy of the record of the configuration.

    Arguments:
        run: the run, with its states; rows are on disk before a checkpoint relies on them.
        evaluation: provides the metric of the current step; None: nothing is evaluated.
    """

    phase = Phase.KEEP

    def __init__(self, run: Run, evaluation: EvaluateCallback | None) -> None:
        self.run, self.store, self.evaluation = run, run.store, evaluation
        section = run.job.checkpoint
        self.intervals: tuple[Period, ...] = section.intervals
        self.steps: At = section.at
        # True while saves are in progress in the background.
        self.writing = False
        # Progress as of the last checkpoint.
        self.saved: tuple[Any, ...] | None = None
        # True if copies may overlap with the next step, whose time is then part of the save.
        self.overlaps = False
        self.pending_seconds: list[float] | None = None

    def start(self, loop: Loop) -> None:
        """Save the initial state of a new run if configured, or after a made-up evaluation."""
        self.saved = self.progress_of(loop)
        self.overlaps = can_overlap_save(loop)
        loop.stop.writing = lambda: self.store.is_writing
        is_new = self.run.resumed_at is None
        made_up = self.evaluation is not None and self.evaluation.made_up
        if (is_new and loop.job.checkpoint.at_start) or made_up:
            self.save(loop)

    def before_update(self, loop: Loop) -> None:
        """Wait until a checkpoint's tensors are copied, before they change."""
        if self.pending_seconds is None:
            return
        with loop.times("save"):
            began = time.perf_counter()
            self.store.finish_copies()
            self.pending_seconds.append(time.perf_counter() - began)
        self.pending_seconds = None

    def needs_result(self, loop: Loop) -> bool:
        """True if a checkpoint is due."""
        due = any(loop.is_due(every) for every in self.intervals) or loop.sync.saves_now
        return due or (self.steps is not None and is_named(self.steps, loop.position.step))

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Poll background saves, and save if due."""
        if self.writing:
            self.writing = self.store.poll()
        section = loop.job.checkpoint
        if self.needs_result(loop) and (section.last == "full" or not loop.is_over):
            self.save(loop)

    def rewound(self, loop: Loop) -> None:
        """Mark the progress as saved, after a rollback."""
        self.saved = self.progress_of(loop)

    def finish(self, loop: Loop) -> None:
        """Save progress since the last checkpoint, even if it is only a row or a score."""
        section = loop.job.checkpoint
        # Only the main rank knows the rows written since.
        if not loop.components.world.on_main(lambda: self.saved == self.progress_of(loop)):
            finished = loop.is_over and self.run.evaluations.due is None
            last = section.last if finished else "full"
            if last != "none":
                self.save(loop, weights_only=last == "weights")
        loop.stop.saving = True
        self.store.wait(section.wait_timeout)
        loop.stop.saving = loop.stop.has_unsaved = False

    def close(self, loop: Loop) -> None:
        """Complete pending saves, even after an error, and report failed ones."""
        for step, reason in self.store.close(loop.job.checkpoint.wait_timeout):
            self.run.progress.note(reason)
            self.run.events.write("fault", step=step, error=reason)
        loop.stop.writing = lambda: False  # drop the reference so that host copies are freed

    def progress_of(self, loop: Loop) -> tuple[Any, ...]:
        """Step, rows and metric, for comparison with the last checkpoint."""
        return loop.position.step, self.run.trackers.state_dict(), self.metric_at(loop)

    def metric_at(self, loop: Loop) -> float | None:
        """Metric of this step that selects the best checkpoint; None if not evaluated."""
        return None if self.evaluation is None else self.evaluation.metric_at(loop)

    def save(self, loop: Loop, weights_only: bool = False) -> None:
        """Save the current state."""
        loop.stop.saving = True
        began, blocked = time.perf_counter(), list[float]()
        step, metric = loop.position.step, self.metric_at(loop)
        part = {"part": "weights"} if weights_only else {}

        def saved(path: Path) -> None:
            seconds = round(sum(blocked) if blocked else time.perf_counter() - began, 3)
            self.run.events.write("save", step=step, checkpoint=path.name, seconds=seconds, **part)
            if loop.stop.limits is not None:
                loop.stop.limits.save_took(time.perf_counter() - began)
            if loop.position.step == step:
                loop.stop.has_unsaved = False

        self.run.trackers.flush()  # a checkpoint relies on the rows so far
        dtype, left_out = loop.job.checkpoint.last_dtype, self.run.frozen.left_out
        with snapshot(self.run.states, loop.position, weights_only, dtype) as taken:
            tensors: dict[str, Mapping[str, Tensor]] = {**taken.tensors}
            texts: dict[str, str | bytes] = {**self.run.record, **loop.components.assets}
            if left_out is not None:
                tensors["model"] = {
                    name: tensor
                    for name, tensor in tensors["model"].items()
                    if name not in left_out.tensors
                }
                to = DTYPES[DType(dtype).torch()] if weights_only and dtype is not None else None
                texts[BASE] = left_out.in_dtype(to).encode()
            unchanged = taken.unchanged if self.overlaps else ()
            self.store.save(step, tensors, taken.state, metric, texts, saved, unchanged=unchanged)
        blocked.append(time.perf_counter() - began)  # the rest is written in the background
        self.pending_seconds, self.writing = blocked, True
        self.saved = self.progress_of(loop)
        loop.stop.saving = False


def can_overlap_save(loop: Loop) -> bool:
    """True if weights and optimizer states stay unchanged between updates.

    Third-party code may change them at any time, even through PyTorch (`Embedding` with
    `max_norm`), so objects from an import path or from an added section are never trusted.
    """
    components, job = loop.components, loop.job
    others_change = components.replicas.holds_state or components.replica_groups is not None
    if isinstance(components.optimizer, Averages) or others_change:
        return False
    roots = (job.model, job.loss, job.optimizer)
    described = (part for root in roots for _, part in sections(root))
    objects = (*components.model.modules(), *described, *added_sections(job).values())
    classes = {base for instance in objects for base in type(instance).__mro__}
    is_ours = all(cls.__module__.partition(".")[0] in OURS for cls in classes)
    return is_ours and ImportedComponent not in classes
