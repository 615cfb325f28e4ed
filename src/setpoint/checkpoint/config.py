"""The section `[checkpoint]`: save interval, retention and resume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from setpoint.config import RUNTIME, Config, Problem, check, field
from setpoint.units import Period


class Checkpoint(Config, role=RUNTIME):
    """Checkpointing: save interval, retention and resume."""

    every: Period = field(
        default=Period("100 steps"),
        tags=("cadence",),
        also_called=(
            "save_steps",
            "save_strategy",
            "save_interval",
            "saves_per_epoch",
            "checkpoint_interval",
        ),
    )
    """Checkpoint interval; Ctrl-C and SIGTERM save one in any case."""
    at_start: bool = False
    """Save a checkpoint before the first step as well."""
    last: Literal["full", "weights", "none"] = field(
        default="full", also_called=("save_only_model", "save_last", "last_save_model_only")
    )
    """Final checkpoint. full: training can resume from it; weights: the model's alone."""
    keep: int | None = field(
        default=2,
        ge=1,
        also_called=(
            "save_total_limit",
            "keep_latest_k",
            "save_num_checkpoints_to_keep",
            "max_checkpoints",
        ),
    )
    """Number of latest checkpoints to keep (save_total_limit); null keeps all."""
    keep_best: bool = field(default=True, also_called=("load_best_model_at_end", "save_best"))
    """Keep the best checkpoint as well, as `best`: of those evaluated and saved, by
    evaluation.best, by default the lowest validation loss."""
    resume: Literal["auto", "never", "must", "restart"] = field(
        default="auto",
        also_called=(
            "resume_from_checkpoint",
            "auto_resume",
            "auto_resume_from_checkpoints",
            "autoresume",
        ),
    )
    """Resume mode. auto: from the latest valid checkpoint, if any; must: refuse to start without
    one; never: refuse a run directory with one; restart: as auto, but start over if a trained run's
    checkpoints are gone, and keep its metrics as metrics.1.jsonl; the others refuse that."""

    @check
    def _check_last(self) -> Iterator[Problem]:
        if self.every.unit == "last_step" and self.last != "full":
            yield Problem(
                "every",
                f"last_step contradicts last = {self.last}, which says what is saved then",
                valid=("never",),
                also=("last",),
            )
