"""Where weights lie, and what they are: a run's checkpoint, or a Hugging Face model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

from setpoint.checkpoint.folder import directory_name
from setpoint.checkpoint.places import find_checkpoint, verify_record
from setpoint.config import SetpointError, is_record
from setpoint.data.tokenizers.config import HuggingFace, TokenizerConfig
from setpoint.data.tokenizers.vocabulary import TOKENIZER
from setpoint.model.pretrained.locate import locate


class Place(NamedTuple):
    """Where weights lie.

    Arguments:
        kind: `checkpoint` for one of Setpoint's, `huggingface` for a model in its format.
        record: the folder with the record of a checkpoint; None for the others.
    """

    kind: Literal["checkpoint", "huggingface"]
    directory: Path
    record: Path | None = None


def find_weights(path: str, which: int | str | None = None, *, weights: bool = False) -> Place:
    """Find weights, without reading them.

    Arguments:
        path: a run directory, a checkpoint, a directory of a Hugging Face model, or a hub id.
        which: of a run: `best`, `latest` or a step; None for the best if there is one, or else
            the latest.

    Raises:
        SetpointError: there are none, or `which` has no meaning for them.
    """
    if which is None:
        place = locate(path, weights=weights)
        if place.kind == "huggingface":
            return Place("huggingface", place.directory)
        return _checkpoint(place.directory)
    run = Path(os.path.expanduser(path))
    if not is_record(str(run)) or not (run / "checkpoints").is_dir() or find_checkpoint(run):
        raise SetpointError(
            f"{path} is no run, so weights.checkpoint = {which} has no effect; leave it out"
        )
    name = which if isinstance(which, str) else directory_name(which)
    found = find_checkpoint(run / "checkpoints" / name)
    if found is None:
        raise SetpointError(f"there is no checkpoint {name} in {run / 'checkpoints'}")
    return _checkpoint(found)


def _checkpoint(directory: Path) -> Place:
    verify_record(directory)
    return Place("checkpoint", directory, directory)


def kept_tokenizer(section: TokenizerConfig, place: Place) -> TokenizerConfig:
    """The section of a tokenizer, with the files that a checkpoint keeps of it."""
    kept = place.record is not None and (place.directory / TOKENIZER).is_file()
    if not kept or not isinstance(section, HuggingFace):
        return section
    return HuggingFace(path=str(place.directory), separator=section.separator)
