"""The section `[checkpoint]`: save interval, retention and resume."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Literal

from setpoint.config import IDENTITY, RUNTIME, Config, ImportPath, Problem, Rule, dead, field, rule
from setpoint.shapes.patterns import pattern_problems
from setpoint.units import Period

RULES = (
    Rule("setpoint.checkpoint.places:load_problems", "The checkpoint to load is there",
         needs="files", when=lambda section: section.load is not None),
)  # fmt: skip
ENTRIES = (
    "optimizer", "loader", "schedule", "scaler", "non_finite", "spikes", "evaluation", "position",
)  # fmt: skip
"""Entries of state.json that `exclude` can name."""
OF_OPTIMIZER = "optimizer."
"""Prefix of a pattern for parameters whose optimizer state alone is excluded."""
EXCLUDED = ("optimizer", r"^output\.", r"optimizer.^output\.")
"""Suggestions in place of an empty pattern."""


FETCH = ImportPath("setpoint.ops.fetching:fetched", ("setpoint.ops",))
"""Function that downloads the checkpoint of a URL into a folder."""


class Remote(Config, role=RUNTIME, owner="setpoint.ops.copies:RemoteCopies"):
    """Upload of checkpoints to a URL in the background.

    A run whose directory is empty or behind resumes from there. A failed upload is retried, and
    stops nothing.
    """

    url: str
    """URL of a folder for runs, such as s3://bucket/runs, through fsspec; a run has a folder there
    with the name of its run directory. Credentials come from the environment."""
    every: Period | None = None
    """Upload interval, among saved checkpoints; null: all are uploaded. The last one of a session
    and the best are uploaded in any case."""
    keep: int | None = field(default=2, ge=1)
    """Number of latest checkpoints to keep at the URL, besides the best and those of
    checkpoint.keep_every and at; null keeps all."""
    verify: Literal["checksum", "size"] = "checksum"
    """Verification of an uploaded file. checksum: by the MD5 that the service reports, where it
    reports one, else by reading the file back; size: by its length alone."""
    waiting: int = field(default=2, ge=1)
    """Number of checkpoints that may wait to be uploaded; they are kept locally, regardless of
    checkpoint.keep, and beyond that number the oldest is not uploaded."""
    wait_timeout: float = field(default=600.0, ge=0)
    """Seconds to wait for uploads when the run ends; checkpoints not uploaded by then are listed,
    and the same command uploads them later."""


class Export(Config, role=RUNTIME, owner="setpoint.ops.exports:ExportCallback"):
    """Export of checkpoints as Hugging Face models, into exports/ of the run directory.

    A separate process reads the saved checkpoint, whatever ranks it is divided among; a directory
    has its final name only when it is complete.
    """

    when: Literal["end", "each_save"] = "end"
    """Checkpoints to export. end: the one after the last step; each_save: each saved one."""
    stored_dtype: Literal["fp64", "fp32", "bf16", "fp16"] | None = None
    """Dtype of the exported weights; null: as saved."""
    keep: int | None = field(default=None, ge=1)
    """Number of latest exports to keep; null keeps all."""


class Checkpoint(Config, role=RUNTIME, rules=RULES):
    """Checkpointing: save interval, retention and resume."""

    every: Period = field(default=Period("100 steps"), tags=("cadence",))
    """Checkpoint interval; Ctrl-C and SIGTERM save a checkpoint in any case. So does SIGUSR2, after
    which training continues."""
    also_every: Period | None = None
    """Second checkpoint interval, for example epochs in addition to steps; null: none."""
    at: Literal["powers_of_two"] | tuple[int, ...] | None = field(default=None, item_ge=1)
    """Additional steps to save after, such as [10, 20, 50]; powers_of_two: 1, 2, 4, 8 and so on.
    These checkpoints are never removed."""
    at_start: bool = False
    """Save a checkpoint before the first step as well."""
    last: Literal["full", "weights", "none"] = "full"
    """Final checkpoint. full: training can resume from it; weights: model weights only."""
    last_dtype: Literal["fp64", "fp32", "bf16", "fp16"] | None = None
    """Dtype of the saved weights with last = weights; null: as trained."""
    keep: int | None = field(default=2, ge=1)
    """Number of latest checkpoints to keep (save_total_limit); null keeps all."""
    keep_every: Period | None = None
    """Interval of checkpoints that are never removed: the first one at or after each multiple."""
    keep_best: bool = True
    """Keep the best checkpoint as well, under the name `best`: of those evaluated and saved, the
    one that evaluation.best selects, by default the one with the lowest validation loss."""
    mode: Literal["sync", "async", "async_pinned"] = "sync"
    """Write mode. sync: training waits until the checkpoint is on disk; async: the state is copied
    to host memory, during the next step where possible, and written by a thread while training
    continues; async_pinned: as async, with page-locked memory, to which GPUs copy faster."""
    in_flight: int = field(default=1, ge=1)
    """Maximum number of checkpoints that are copied but not yet written; each uses host memory, and
    a further save waits. For mode = async and async_pinned."""
    wait_timeout: float | None = field(default=None, gt=0, lt=inf)
    """Timeout in seconds at the end of the run, after which a checkpoint that is not written is
    abandoned and the run fails; null: none. For mode = async and async_pinned."""
    resume: Literal["auto", "never", "must", "restart"] = "auto"
    """Resume mode. auto: from the latest valid checkpoint, if any; must: refuse to start without
    one; never: refuse a run directory with one; restart: as auto, but start over if a trained run's
    checkpoints are gone, and keep its metrics as metrics.1.jsonl; the other modes refuse such a
    run."""
    load: str | None = field(default=None, role=IDENTITY)
    """Run or checkpoint from whose full state a new run starts: weights, optimizer, data position,
    step. A run means its latest; RUN/checkpoints/best or .../step-00000100 name others; a URL of
    checkpoint.remote works as well. The run's own checkpoints come first, then this, then
    model.pretrained."""
    exclude: tuple[str, ...] = field(default=(), role=IDENTITY)
    """State that load leaves out, to start fresh: optimizer, loader (data position), schedule,
    scaler, non_finite, spikes, evaluation, position (step 0); regular expressions searched in names
    of weights; with the prefix "optimizer.", in names of parameters of which only the optimizer
    state is left out."""
    resharding: Literal["allow", "refuse"] = "allow"
    """Resuming or loading with parallel degrees other than those that the checkpoint was saved
    with. allow: recorded; refuse: an error."""

    @property
    def excludes_weights(self) -> bool:
        """True if a pattern may exclude weights."""
        return any(
            pattern not in ENTRIES and not pattern.startswith(OF_OPTIMIZER)
            for pattern in self.exclude
        )

    @dead("exclude")
    def _exclude_is_dead(self) -> str | None:
        return "only checkpoint.load loads a part of a checkpoint" if self.load is None else None

    @rule
    def _check_exclude(self) -> Iterator[Problem]:
        for index, entry in enumerate(self.exclude):
            pattern = entry.removeprefix(OF_OPTIMIZER)
            yield from pattern_problems(f"exclude.{index}", pattern, EXCLUDED)

    save_frozen: bool = True
    """Save frozen parameters; false: they are left out, and loaded again from model.pretrained,
    which must be unchanged; those trained before they were frozen are saved."""
    save: bool = True
    """Save checkpoints; false: existing ones are loaded, but none are saved, removed or renamed."""
    export: Export | None = None
    """Export of checkpoints as Hugging Face models; null: none, `setpoint export` does so later."""
    remote: Remote | None = None
    """Copies of the checkpoints at a URL, such as an object store; null: none."""

    @dead("in_flight", "wait_timeout")
    def _background_is_dead(self) -> str | None:
        return (
            "with mode = sync training waits while each is written" if self.mode == "sync" else None
        )

    @property
    def intervals(self) -> tuple[Period, ...]:
        """The save intervals."""
        return (self.every,) if self.also_every is None else (self.every, self.also_every)

    @rule
    def _check_also_every(self) -> Iterator[Problem]:
        second = self.also_every
        if second is None or second.unit == "never":
            return
        if second.unit == "last_step" or self.every.unit == "never":
            yield Problem(
                "also_every",
                f"{second} is not a second interval besides every = {self.every}",
                valid=("null",),
                also=("every",),
            )
        elif second == self.every:
            yield Problem("also_every", "is the interval of every", valid=("null",))

    @rule
    def _check_export(self) -> Iterator[Problem]:
        export = self.export
        if export is not None and self.save and self.last == "none" and export.when == "end":
            yield Problem(
                "last",
                "leaves no checkpoint of the last step, which is the one that is exported",
                valid=("full", "weights"),
                also=("export.when",),
            )

    @rule
    def _check_last(self) -> Iterator[Problem]:
        if self.every.unit == "last_step" and self.last != "full":
            yield Problem(
                "every",
                f"last_step contradicts last = {self.last}, which determines what is saved at the "
                f"last step",
                valid=("never",),
                also=("last",),
            )
        if self.last_dtype is not None and self.last != "weights":
            yield Problem(
                "last_dtype",
                f"{self.last_dtype} has no effect with last = {self.last}: training resumes from "
                f"weights in the dtype they are trained in",
                valid=("null",),
                also=("last",),
            )

    @rule
    def _check_retention(self) -> Iterator[Problem]:
        every = self.keep_every
        if every is not None and every.unit == "never":
            every = None
        if every is not None and every.unit == "last_step":
            yield Problem(
                "keep_every",
                f"{every} is not an interval",
                valid=("null", "1000 steps", "1 epoch", "1e9 tokens", "6 h"),
            )
        elif every is not None and self.keep is None and getattr(self.remote, "keep", None) is None:
            yield Problem(
                "keep_every",
                f"{every} has no effect with keep = null, which keeps all checkpoints",
                valid=("null",),
                also=("keep",),
            )

    @dead(
        "every", "at_start", "at", "also_every", "last", "keep", "keep_every", "save_frozen",
        "mode", "remote", "export", holds=("none", Period("never"), ()),
    )  # fmt: skip
    def _saving_is_dead(self) -> str | None:
        return None if self.save else "save = false saves no checkpoint"
