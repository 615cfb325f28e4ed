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
    """Final checkpoint: everything; the weights alone, from which training cannot go on; or
    nothing."""
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
    """Number of the newest checkpoints to keep (save_total_limit); null keeps all."""
    keep_best: bool = field(default=True, also_called=("load_best_model_at_end", "save_best"))
    """Keep the best checkpoint by evaluation.best too, under the name `best`: by default the one
    with the lowest validation loss among those that were evaluated and saved."""
    resume: Literal["auto", "never", "must", "restart"] = field(
        default="auto",
        also_called=(
            "resume_from_checkpoint",
            "auto_resume",
            "auto_resume_from_checkpoints",
            "autoresume",
        ),
    )
    """Resume: `auto` goes on from the newest whole checkpoint if there is one, `must` refuses to
    start without one, `never` refuses a run directory that holds one. `restart` is `auto`, but
    where a run has trained and its checkpoints are gone it starts over, with its metrics kept
    beside as `metrics.1.jsonl`; the others refuse that."""

    @check
    def _check_last(self) -> Iterator[Problem]:
        if self.every.unit == "last_step" and self.last != "full":
            yield Problem(
                "every",
                f"last_step contradicts last = {self.last}, which says what is saved then",
                valid=("never",),
                also=("last",),
            )
