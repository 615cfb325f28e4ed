"""Location of pretrained models: runs, checkpoints, other directories, and hub ids."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from setpoint.checkpoint.manifest import read_manifest, verify
from setpoint.checkpoint.places import find_checkpoint, is_point, run_of_point, verify_record
from setpoint.config import (
    ORIGINS,
    MissingPathError,
    SetpointError,
    can_be_path,
    for_error,
    nearest,
    read_record,
    resolve,
)
from setpoint.data.config import HuggingFace
from setpoint.files import MANIFEST
from setpoint.hub.fetch import fetch_files, is_url, split_hub_id

if TYPE_CHECKING:
    from setpoint.data.config import TokenizerConfig
    from setpoint.train.config import Job

CONFIG: Final = "config.json"
"""Configuration file of a transformers model."""

ADAPTER_CONFIG: Final = "adapter_config.json"
"""Configuration file of an adapter in PEFT's format."""

_CHECKPOINTS: Final = "checkpoints"
_OTHERS: Final = (".pt", ".pth", ".ckpt", ".bin", ".gguf")
"""File suffixes of checkpoints of other systems."""


class Place(NamedTuple):
    """Location of a model.

    Arguments:
        is_checkpoint: True for a checkpoint of Setpoint, which has the record of its run; False for
            a directory in the format of Hugging Face.
    """

    name: str
    directory: Path
    is_checkpoint: bool = False


def locate(name: str, *, weights: bool = True) -> Place:
    """Locate a model; local directories take precedence over the Hub.

    Arguments:
        name: a directory, or a hub id with an optional `@revision`.

    Raises:
        SetpointError: there is no such model; lists the places searched.
    """
    return locate_here(name) or Place(name, fetch(name, weights=weights))


def locate_here(name: str) -> Place | None:
    """Locate a model in a local directory.

    Raises:
        SetpointError: the name is neither a directory with a model nor a hub id.
    """
    if not can_be_path(name):
        raise SetpointError(f"{for_error(name)}: not a valid file name")
    path = Path(os.path.expanduser(name))
    if (path / MANIFEST).is_file() or not path.is_dir():
        checkpoint = find_checkpoint(path)
        if checkpoint is not None:
            return Place(name, checkpoint, True)
    if not path.exists():
        is_inside = len(path.parts) > 1 and path.parent.is_dir()  # of a folder, so not on the Hub
        if is_inside or split_hub_id(name) is None:
            raise MissingPathError(f"{name}: {_missing(name, path)}")
        return None
    if not path.is_dir():
        raise SetpointError(
            f"{name} is a file; give the directory with {CONFIG}{_import_hint(path)}"
        )
    if (path / ORIGINS).is_file() or (path / _CHECKPOINTS).is_dir():
        return Place(name, _run_checkpoint(path), True)
    if not (path / CONFIG).is_file():
        if (path / ADAPTER_CONFIG).is_file():
            raise adapter_alone(name)
        raise SetpointError(
            f"{name} is a directory without {CONFIG}: neither a run or checkpoint of Setpoint nor "
            f"a model of Hugging Face{_import_hint(path)}"
        )
    return Place(name, path)


def adapter_alone(name: str) -> SetpointError:
    """The error for the directory of an adapter without the model that it adapts."""
    return SetpointError(
        f"{name} has only an adapter, in PEFT's format, without the base weights.\n"
        f"Valid: the directory of a merged model, which PEFT's merge_and_unload() gives; the run "
        f"that the adapter was exported from; `setpoint export RUN` without --adapter"
    )


def is_on_hub(name: str) -> bool:
    """True if a name can only be a hub id."""
    try:
        return locate_here(name) is None
    except SetpointError:
        return False


def _run_checkpoint(path: Path) -> Path:
    """The best checkpoint of a run, given by its directory or its point, or else the newest."""
    path = run_of_point(path) if is_point(path) else path
    for name in ("best", "latest"):
        if (path / _CHECKPOINTS / name).is_file():
            checkpoint = find_checkpoint(path / _CHECKPOINTS / name)
            if checkpoint is not None:
                return checkpoint
    raise SetpointError(f"{path} is a run without checkpoints")


def _import_hint(path: Path) -> str:
    """Hint about a possible checkpoint of another system; empty if there is none."""
    files = [path] if path.is_file() else [*path.glob("*.*")]
    if not any(file.suffix in _OTHERS or file.name == ".metadata" for file in files):
        return ""
    return "; `setpoint checkpoint import` converts checkpoints of other systems"


def _missing(name: str, path: Path) -> str:
    if is_url(name):
        return (
            "is a URL; give a copy of the directory on this machine, or start from a checkpoint "
            "there with checkpoint.load"
        )
    parent = path.parent
    if not parent.is_dir():
        return "there is no such directory, and a hub id has the form organization/name"
    names = [other.name for other in parent.iterdir() if other.is_dir()]
    close = nearest(path.name, names, 1)
    meant = f". Did you mean {parent / close[0]}?" if close else ""
    form = "" if close else "; a hub id has the form organization/name"
    return f"there is no such directory{meant}{form}"


GENERATION: Final = "generation_config.json"
"""File with end-of-text tokens and recommended sampling settings."""

CONFIG_FILES: Final = ("config.json", GENERATION)
"""Files that describe a model, without its weights."""

TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
)
"""Files of a tokenizer, in all formats."""

_WEIGHTS: Final = ("model*.safetensors", "model.safetensors.index.json")


def fetch(name: str, *, weights: bool = True) -> Path:
    """Return the cache directory of a Hub model, and download the model if necessary.

    Raises:
        SetpointError: the package is missing, the Hub is unreachable, or has no such model.
    """
    patterns = [*CONFIG_FILES, *TOKENIZER_FILES, *(_WEIGHTS if weights else ())]
    works = "A directory with config.json and model.safetensors works without the Hub."
    directory = fetch_files(name, patterns, instead=works)
    if not (directory / CONFIG_FILES[0]).is_file():
        raise SetpointError(f"{name} on the Hub has no config.json, so it is not a model")
    return directory


def read_keys(directory: Path, name: str = CONFIG, optional: bool = False) -> dict[str, Any]:
    """Read a directory's config.json, or another JSON file.

    Arguments:
        optional: return {} if there is no such file.

    Raises:
        SetpointError: the file is missing, or not a JSON object.
    """
    file = directory / name
    if optional and not file.is_file():
        return {}
    try:
        keys: Any = json.loads(file.read_bytes(), object_hook=_special_float)
    except OSError as error:
        raise SetpointError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SetpointError(f"{file} is not JSON: {error}") from error
    if not isinstance(keys, dict):
        raise SetpointError(f"{file} is not a JSON object")
    return cast(dict[str, Any], keys)


def _special_float(value: dict[str, Any]) -> Any:
    """A float that transformers writes as `{"__float__": "Infinity"}`; other objects unchanged."""
    return float(value["__float__"]) if value.keys() == {"__float__"} else value


DESCRIPTION: Final = "pretrained.json"
"""File with the config.json of a Hugging Face model that the run started from or trains: special
tokens, and the keys that transformers builds the model from."""


def job_of(checkpoint: Path) -> Job:
    """The resolved job that wrote a checkpoint."""
    from setpoint.train.config import Job

    verify_record(checkpoint)
    return resolve(read_record(Job, str(checkpoint))[0])


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
    """True if a checkpoint contains a file; the file is verified."""
    manifest = read_manifest(checkpoint)
    if name not in manifest.files:
        return False
    verify(checkpoint, manifest, [name])
    return True


def tokenizer_of(checkpoint: Path, section: TokenizerConfig) -> Any:
    """Build the tokenizer of a checkpoint, from files in the checkpoint if there are any."""
    if isinstance(section, HuggingFace) and holds(checkpoint, TOKENIZER_FILES[0]):
        return section.build(directory=checkpoint)
    return section.build()


def description_of(checkpoint: Path) -> dict[str, Any] | None:
    """The config.json of the Hugging Face model from which a checkpoint's run started, or None."""
    return read_keys(checkpoint, DESCRIPTION) if holds(checkpoint, DESCRIPTION) else None


def keys_of_origin(directory: Path | None) -> dict[str, Any]:
    """The config.json of the Hugging Face model that weights are, or started from; {} if none.

    Arguments:
        directory: a checkpoint, or a directory in Hugging Face's format; None: unknown.
    """
    if directory is None:
        return {}
    if (directory / MANIFEST).is_file():
        return description_of(directory) or {}
    return read_keys(directory, optional=True)
