"""What a run keeps of the files it began with, for when those are gone."""

from __future__ import annotations

import os
from pathlib import Path

from setpoint.data.tokenizers.config import HuggingFace
from setpoint.data.tokenizers.vocabulary import TOKENIZER
from setpoint.train.config import Job
from setpoint.train.record.outlook import newest_whole


def kept_tokenizer(job: Job, path: str | Path) -> Path | None:
    """Find the checkpoint to read the tokenizer from where nothing lies at `tokenizer.path`.

    Arguments:
        path: the run directory.

    Returns:
        the newest whole checkpoint, if it holds the tokenizer; None where that is not needed, too.
    """
    section = job.tokenizer
    if not isinstance(section, HuggingFace) or os.path.exists(os.path.expanduser(section.path)):
        return None
    _, checkpoint = newest_whole(Path(path) / "checkpoints")
    return checkpoint if checkpoint is not None and (checkpoint / TOKENIZER).is_file() else None


def tokenizer_line(job: Job, kept: Path) -> str:
    """Say where the tokenizer is read from in place of `tokenizer.path`."""
    assert isinstance(job.tokenizer, HuggingFace)
    return f"tokenizer: {job.tokenizer.path} is gone; that of {kept} is used"
