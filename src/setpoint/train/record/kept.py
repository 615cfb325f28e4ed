"""What a run keeps of the files it began with, for when those are gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from setpoint.data.tokenizers.config import HuggingFace
from setpoint.data.tokenizers.vocabulary import TOKENIZER
from setpoint.model.config import HuggingFaceModel
from setpoint.train.config import Job
from setpoint.train.record.outlook import newest_whole


class Kept(NamedTuple):
    """The checkpoint to read each thing from; None: from where the configuration says.

    Arguments:
        tokenizer: in place of `tokenizer.path`.
        model: in place of the config.json at `model.config`.
    """

    tokenizer: Path | None = None
    model: Path | None = None

    @property
    def problems(self) -> set[str]:
        """The fields whose files may be missing."""
        fields = {"tokenizer.path": self.tokenizer, "model.config": self.model}
        return {field for field, kept in fields.items() if kept is not None}


def kept_files(job: Job, path: str | Path) -> Kept:
    """Find what the newest whole checkpoint holds of files that are gone.

    Arguments:
        path: the run directory.
    """
    places = [
        _is_gone(job.tokenizer.path) if isinstance(job.tokenizer, HuggingFace) else False,
        _is_gone(job.model.config) if isinstance(job.model, HuggingFaceModel) else False,
    ]
    if not any(places):
        return Kept()
    _, checkpoint = newest_whole(Path(path) / "checkpoints")
    if checkpoint is None:
        return Kept()
    tokenizer, model = places
    return Kept(
        checkpoint if tokenizer and (checkpoint / TOKENIZER).is_file() else None,
        checkpoint if model and _holds_config(job, checkpoint) else None,
    )


def _is_gone(place: str) -> bool:
    return not os.path.exists(os.path.expanduser(place))


def _holds_config(job: Job, checkpoint: Path) -> bool:
    """Whether a checkpoint keeps a config.json, and not the name of a kind of models alone."""
    from setpoint.model.pretrained.document import read_keys
    from setpoint.model.pretrained.run import DESCRIPTION

    assert isinstance(job.model, HuggingFaceModel)
    if not (checkpoint / DESCRIPTION).is_file():
        return False
    return read_keys(checkpoint, DESCRIPTION) != {"model_type": job.model.config}


def kept_lines(job: Job, kept: Kept) -> Iterator[str]:
    """Say what is read from a checkpoint."""
    if kept.tokenizer is not None:
        assert isinstance(job.tokenizer, HuggingFace)
        yield f"tokenizer: {job.tokenizer.path} is gone; that of {kept.tokenizer} is used"
    if kept.model is not None:
        assert isinstance(job.model, HuggingFaceModel)
        yield (
            f"model: no config.json lies at {job.model.config}; the one kept in {kept.model} is "
            f"used"
        )
