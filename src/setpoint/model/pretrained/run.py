"""Models that Setpoint trained: the configuration and the weights of a run's checkpoint.

The record of a run is that of a whole job, whose class lies above this layer of the house; this is
the one module that looks up there, when it is asked to.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from setpoint.checkpoint.manifest import read_manifest, verify
from setpoint.checkpoint.places import verify_record
from setpoint.config import SetpointError, read_record, resolve
from setpoint.data.tokenizers.config import HuggingFace
from setpoint.files.tensor_header import read_header
from setpoint.model.pretrained.document import read_keys
from setpoint.model.pretrained.locate import TOKENIZER_FILES

if TYPE_CHECKING:
    from setpoint.data.tokenizers.config import TokenizerConfig
    from setpoint.files.tensor_header import TensorInfo
    from setpoint.model.config import ModelConfig
    from setpoint.shapes.placed import Named
    from setpoint.train.config import Job

WEIGHTS: Final = "model.safetensors"
"""The file of a checkpoint that holds the weights."""

INDEX: Final = "model.index.json"
"""The file of a checkpoint that says where the weights lie that several ranks have written."""

DESCRIPTION: Final = "pretrained.json"
"""The file of a checkpoint with what config.json of a Hugging Face model says, where the run
started from one or trains one: its special tokens, and what transformers builds it from."""


def job_of(checkpoint: Path) -> Job:
    """The job that a checkpoint was trained by.

    Returns:
        the resolved configuration.

    Raises:
        SetpointError: if there is no record, or it cannot be read.
    """
    from setpoint.train.config import Job

    verify_record(checkpoint)
    return resolve(read_record(Job, str(checkpoint))[0])


def model_of(checkpoint: Path) -> ModelConfig:
    """The model that a checkpoint holds.

    Raises:
        SetpointError: if there is no record, or it cannot be read.
    """
    return job_of(checkpoint).model


def require_no_adapter(checkpoint: Path) -> None:
    """Refuse weights that an adapter changes, which are not those of the model by themselves.

    Raises:
        SetpointError: if there is one; or no record, or it cannot be read.
    """
    adapter = job_of(checkpoint).adapter
    if adapter is not None:
        raise SetpointError(
            f"{checkpoint} has an adapter of type = {type(adapter).__setpoint__.tag}, without "
            f"which its weights are not those that were trained: `setpoint export RUN DIRECTORY` "
            f"writes weights in which it is merged"
        )


def holds(checkpoint: Path, name: str) -> bool:
    """Whether a checkpoint keeps a file, and that it is what was saved.

    Raises:
        DamagedCheckpoint: if the file is missing or differs.
    """
    manifest = read_manifest(checkpoint)
    if name not in manifest.files:
        return False
    verify(checkpoint, manifest, [name])
    return True


def tokenizer_of(checkpoint: Path, section: TokenizerConfig) -> Any:
    """Build the tokenizer of a checkpoint, from the files that it keeps of it.

    Raises:
        SetpointError: if the checkpoint keeps no files, and they are not where the section says.
    """
    if isinstance(section, HuggingFace) and holds(checkpoint, TOKENIZER_FILES[0]):
        return section.build(directory=checkpoint)
    return section.build()


def description_of(checkpoint: Path) -> dict[str, Any] | None:
    """Read what a checkpoint keeps of the Hugging Face model that its run started from.

    Returns:
        the keys of that model's config.json; None without one.

    Raises:
        DamagedCheckpoint: if the file is not what was saved.
    """
    return read_keys(checkpoint, DESCRIPTION) if holds(checkpoint, DESCRIPTION) else None


def list_weights(checkpoint: Path) -> dict[str, TensorInfo]:
    """Find the weights of a checkpoint, whose every byte is compared with its checksum first.

    Raises:
        DamagedCheckpoint: if the file is not what was saved.
    """
    verify(checkpoint, read_manifest(checkpoint), [WEIGHTS])
    return read_header(checkpoint / WEIGHTS)


def weights_in_parts(checkpoint: Path) -> Named | None:
    """Find the weights of a checkpoint of several ranks, each of which has written its parts.

    Returns:
        tensors that are read when they are placed; None where one file holds the weights.

    Raises:
        DamagedCheckpoint: if a file is not what was saved.
    """
    if INDEX not in read_manifest(checkpoint).files:
        return None
    from setpoint.checkpoint.loading import load_directory

    return load_directory(checkpoint, only=("model",)).tensors["model"]
