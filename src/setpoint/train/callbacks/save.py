"""Saves checkpoints."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from setpoint.checkpoint.folder import is_named
from setpoint.checkpoint.manifest import BASE
from setpoint.config import Foreign, added_sections, sections
from setpoint.files.tensor_file import DTYPES
from setpoint.track.chain import HEAD
from setpoint.train.averaging import Averages
from setpoint.train.loop import Callback, Phase
from setpoint.train.position import is_due
from setpoint.train.state import Stateful, snapshot
from setpoint.units import DType

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from setpoint.checkpoint.manifest import Base
    from setpoint.checkpoint.store import CheckpointStore
    from setpoint.track.chain import Chain
    from setpoint.track.events import EventLog
    from setpoint.track.progress import Progress
    from setpoint.track.trackers import Trackers
    from setpoint.train.callbacks.evaluate import EvaluateCallback
    from setpoint.train.loop import Loop, StepResult


OURS = sys.stdlib_module_names | {"setpoint", "torch"}
"""Packages whose code is known to change weights in the update of a step alone."""


class LoadOnlyCallback(Callback):
    """Says of a run that saves nothing what that means."""

    phase = Phase.KEEP

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def start(self, loop: Loop) -> None:
        """Say so before the first step."""
        self.progress.note(
            f"checkpoint.save = false: no checkpoint is saved, and what is trained from step "
            f"{loop.position.step} on is lost when this process ends"
        )

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Let a stop end the next step where it is: there is nothing to wait for."""
        loop.stop.busy = False
        if loop.ranks.saves_now:
            self.progress.note("SIGUSR2: no checkpoint is saved, as checkpoint.save = false")


class SaveCallback(Callback):
    """Saves every so often, after the last step, and when the run is asked to stop.

    Arguments:
        states: all that has a state; the rows of a step are on disk before a checkpoint counts on
            them.
        evaluation: knows the metric of the present step.
        chain: each checkpoint has its head.
        record: the files that record the job. Each checkpoint has a copy of them: weights mean
            something only with the configuration that they were trained with.
        is_new: whether the run has no checkpoint yet.
        left_out: the frozen parameters that checkpoints do not hold; None where they hold all.
        heard: called with each checkpoint that is there.
    """

    phase = Phase.KEEP

    def __init__(
        self,
        store: CheckpointStore,
        states: Mapping[str, Stateful],
        events: EventLog,
        evaluation: EvaluateCallback,
        trackers: Trackers,
        progress: Progress,
        chain: Chain,
        record: Mapping[str, str],
        is_new: bool = True,
        left_out: Base | None = None,
        heard: Callable[[Path], None] | None = None,
    ) -> None:
        self.store = store
        self.states = states
        self.events = events
        self.evaluation = evaluation
        self.trackers = trackers
        self.progress = progress
        self.chain = chain
        self.is_new = is_new
        self.left_out, self.heard = left_out, heard
        self.saved: tuple[Any, ...] | None = None
        self.record: Mapping[str, str | bytes] = record
        # Whether copies may go on in the next step; and the seconds of the last save, of which that
        # step knows the rest.
        self.overlaps = False
        self.unsettled: list[float] | None = None

    def start(self, loop: Loop) -> None:
        """Save the initial state of a new run where asked for, and what was made up for."""
        self.saved = self.progress_of(loop)
        self.overlaps = stands_still(loop)
        self.record = {**self.record, **loop.components.companions}
        loop.stop.writing = lambda: self.store.is_writing
        if (self.is_new and loop.job.checkpoint.at_start) or self.evaluation.made_up:
            self.save(loop)

    def before_update(self, loop: Loop) -> None:
        """Let what is being copied be copied before it changes."""
        if self.unsettled is None:
            return
        with loop.times("save"):
            began = time.perf_counter()
            self.store.settle()
            self.unsettled.append(time.perf_counter() - began)
        self.unsettled = None

    def is_due(self, loop: Loop) -> bool:
        """Whether a checkpoint is."""
        section = loop.job.checkpoint
        due = any(
            is_due(every, loop.before, loop.position, loop.last) for every in section.intervals
        )
        return due or is_named(section.at, loop.position.step) or loop.ranks.saves_now

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Hear of what was saved in the background, and save if it is due."""
        self.store.poll()
        section = loop.job.checkpoint
        if self.is_due(loop) and (section.last == "full" or not loop.last):
            self.save(loop)

    def rewound(self, loop: Loop) -> None:
        """Nothing that the checkpoint lacks is left."""
        self.saved = self.progress_of(loop)

    def finish(self, loop: Loop) -> None:
        """Save what has not been saved yet, be it a row or a score of the last step."""
        section = loop.job.checkpoint
        # Only the main rank knows the rows that were written since.
        if not loop.components.world.on_main(lambda: self.saved == self.progress_of(loop)):
            finished = loop.is_over and self.evaluation.best.due is None
            last = section.last if finished else "full"
            if last != "none":
                self.save(loop, weights_only=last == "weights")
        loop.stop.saving = True
        self.store.wait(section.wait_timeout)
        loop.stop.saving = loop.stop.busy = False

    def close(self, loop: Loop) -> None:
        """Let what was begun be saved where the session ends by an error, and say what was not."""
        for step, reason in self.store.close(loop.job.checkpoint.wait_timeout):
            self.progress.note(reason)
            self.events.write("fault", step=step, error=reason)
        loop.stop.writing = lambda: False  # who keeps the request keeps no copies

    def progress_of(self, loop: Loop) -> tuple[Any, ...]:
        """What a checkpoint would hold now that the last one may lack."""
        metric = self.evaluation.metric_at(loop)
        return loop.position.step, self.trackers.state_dict(), metric

    def save(self, loop: Loop, weights_only: bool = False) -> None:
        """Save the present state."""
        loop.stop.saving = True
        began, held = time.perf_counter(), list[float]()
        step, metric = loop.position.step, self.evaluation.metric_at(loop)
        part = {"part": "weights"} if weights_only else {}

        def saved(path: Path) -> None:
            seconds = round(sum(held) if held else time.perf_counter() - began, 3)
            self.events.write("save", step=step, checkpoint=path.name, seconds=seconds, **part)
            if loop.stop.limits is not None:
                loop.stop.limits.save_took(time.perf_counter() - began)
            if loop.position.step == step:
                loop.stop.busy = False
            if self.heard is not None:
                self.heard(path)

        dtype = loop.job.checkpoint.last_dtype
        head = {} if self.chain.head is None else {HEAD: self.chain.head}
        with snapshot(self.states, loop.position, weights_only, dtype) as taken:
            tensors, texts = taken.tensors, {**self.record, **head}
            if self.left_out is not None:
                tensors = self._without_frozen(tensors)
                to = DTYPES[DType(dtype).torch()] if weights_only and dtype is not None else None
                texts[BASE] = self.left_out.in_dtype(to).encode()
            still = taken.still if self.overlaps else ()
            self.store.save(step, tensors, taken.state, metric, texts, saved, still=still)
        held.append(time.perf_counter() - began)  # in the background it is written from here on
        self.unsettled = held
        self.saved = self.progress_of(loop)
        loop.stop.saving = False

    def _without_frozen(
        self, tensors: Mapping[str, Mapping[str, Tensor]]
    ) -> dict[str, Mapping[str, Tensor]]:
        """What is saved of the tensors."""
        assert self.left_out is not None
        names = self.left_out.tensors
        model = {name: each for name, each in tensors["model"].items() if name not in names}
        return {**tensors, "model": model}


def stands_still(loop: Loop) -> bool:
    """Whether nothing changes weights or states of the optimizer from one update to the next.

    Code of others may do so: in a forward pass, after a backward pass, after a step. It may hide
    behind classes of torch, which has such code as well (`Embedding` with `max_norm`): what is
    built by an import path, or by a section that a package has added, is not trusted at all.
    """
    components, job = loop.components, loop.job
    others_change = components.replicas.holds_state or components.groups is not None
    if isinstance(components.optimizer, Averages) or others_change:
        return False
    asked = (each for part in (job.model, job.loss, job.optimizer) for _, each in sections(part))
    made = (*components.model.modules(), *asked, *added_sections(job).values())
    classes = {base for each in made for base in type(each).__mro__}
    ours = all(cls.__module__.partition(".")[0] in OURS for cls in classes)
    return ours and Foreign not in classes
