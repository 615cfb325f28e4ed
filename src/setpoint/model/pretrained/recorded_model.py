"""Trained models: the configuration and weights of a run's checkpoint.

The record of a run contains a whole job, whose class belongs to a higher layer; this is the only
module of the model that imports the class, and only when it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from setpoint.checkpoint.manifest import read_manifest, verify
from setpoint.checkpoint.places import verify_record
from setpoint.config import SetpointError, read_record, resolve
from setpoint.data.tokenizers.config import HuggingFace
from setpoint.files import MANIFEST
from setpoint.model.pretrained.config_document import read_keys
from setpoint.model.pretrained.locate import CONFIG, TOKENIZER_FILES

if TYPE_CHECKING:
    from setpoint.data.tokenizers.config import TokenizerConfig
    from setpoint.model.config import ModelConfig
    from setpoint.train.config import Job

DESCRIPTION: Final = "pretrained.json"
"""File with the config.json of a Hugging Face model that the run started from or trains: special
tokens, and the keys that transformers builds the model from."""


def job_of(checkpoint: Path) -> Job:
    """The job that wrote a checkpoint.

    Returns:
        the resolved configuration.

    Raises:
        SetpointError: there is no record, or it cannot be read.
    """
    from setpoint.train.config import Job

    verify_record(checkpoint)
    return resolve(read_record(Job, str(checkpoint))[0])


def model_of(checkpoint: Path) -> ModelConfig:
    """The model section of a checkpoint's job.

    Raises:
        SetpointError: there is no record, or it cannot be read.
    """
    return job_of(checkpoint).model


def require_no_adapter(checkpoint: Path) -> None:
    """Refuse weights with an adapter, which do not form a model on their own.

    Raises:
        SetpointError: there is an adapter, there is no record, or the record cannot be read.
    """
    adapter = job_of(checkpoint).adapter
    if adapter is not None:
        raise SetpointError(
            f"{checkpoint} has an adapter of type = {type(adapter).__setpoint__.tag}, and its "
            f"weights are incomplete without it; merge it with `setpoint export RUN DIRECTORY`"
        )


def holds(checkpoint: Path, name: str) -> bool:
    """True if a checkpoint contains a file; the file is verified.

    Raises:
        DamagedCheckpoint: the file is missing or differs.
    """
    manifest = read_manifest(checkpoint)
    if name not in manifest.files:
        return False
    verify(checkpoint, manifest, [name])
    return True


def tokenizer_of(checkpoint: Path, section: TokenizerConfig) -> Any:
    """Build the tokenizer of a checkpoint, from files in the checkpoint if there are any.

    Raises:
        SetpointError: the checkpoint has no files, and the files of the section are missing.
    """
    if isinstance(section, HuggingFace) and holds(checkpoint, TOKENIZER_FILES[0]):
        return section.build(directory=checkpoint)
    return section.build()


def description_of(checkpoint: Path) -> dict[str, Any] | None:
    """Read the config.json of the Hugging Face model from which a checkpoint's run started.

    Returns:
        the keys; None if there is no such model.

    Raises:
        DamagedCheckpoint: the file differs from what was saved.
    """
    return read_keys(checkpoint, DESCRIPTION) if holds(checkpoint, DESCRIPTION) else None


def keys_of_origin(directory: Path | None) -> dict[str, Any]:
    """The config.json of the Hugging Face model that weights are, or that they started from.

    Arguments:
        directory: a checkpoint, or a directory in Hugging Face's format; None: unknown.

    Returns:
        the keys; empty if there is no such model.
    """
    if directory is None:
        return {}
    if (directory / MANIFEST).is_file():
        return description_of(directory) or {}
    return read_keys(directory) if (directory / CONFIG).is_file() else {}
