"""Places of pretrained models: runs, checkpoints, other directories, and ids of the hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal, NamedTuple

from setpoint.config import ORIGINS, SetpointError, can_be_path, for_error, nearest
from setpoint.hub.fetch import fetch_files, split_hub_id

CONFIG: Final = "config.json"
"""The file that describes a model of transformers."""

MANIFEST: Final = "manifest.json"
"""The file that makes a directory a checkpoint of Setpoint."""

_CHECKPOINTS: Final = "checkpoints"
_OTHERS: Final = (".pt", ".pth", ".ckpt", ".bin", ".gguf")
"""Suffixes of files of other systems."""


class Place(NamedTuple):
    """Where a model lies.

    Arguments:
        kind: `checkpoint` for one of Setpoint's, `huggingface` for a directory in its format.
    """

    name: str
    kind: Literal["checkpoint", "huggingface"]
    directory: Path


def locate(name: str, *, weights: bool = True) -> Place:
    """Find a model; what exists here wins over the hub.

    Arguments:
        name: a directory, or the id of a model on the hub, perhaps with `@revision`.

    Raises:
        SetpointError: if there is no such model, in words that say what was looked for.
    """
    found = locate_here(name)
    if found is None:
        found = Place(name, "huggingface", fetch(name, weights=weights))
    return found


def locate_here(name: str) -> Place | None:
    """Find a model in a directory, without the hub.

    Raises:
        SetpointError: if it is neither a directory with a model nor an id.
    """
    if not can_be_path(name):
        raise SetpointError(f"{for_error(name)}: not a valid file name")
    path = Path(os.path.expanduser(name))
    if (path / MANIFEST).is_file() or not path.is_dir():
        checkpoint = _checkpoint(path)
        if checkpoint is not None:
            return Place(name, "checkpoint", checkpoint)
    if not path.exists():
        if split_hub_id(name) is None or _is_below_here(path):
            raise SetpointError(f"{name}: {_missing(path)}")
        return None
    if not path.is_dir():
        raise SetpointError(
            f"{name} is a file; name the directory that holds {CONFIG}{_import_hint(path)}"
        )
    if (path / ORIGINS).is_file() or (path / _CHECKPOINTS).is_dir():
        return Place(name, "checkpoint", _of_run(path))
    if not (path / CONFIG).is_file():
        raise SetpointError(
            f"{name} is a directory without {CONFIG}: neither a run or checkpoint of Setpoint nor "
            f"a model of Hugging Face{_import_hint(path)}"
        )
    return Place(name, "huggingface", path)


def is_on_hub(name: str) -> bool:
    """Whether a name can be no other than an id of the hub.

    Arguments:
        name: as for `locate`.
    """
    try:
        return locate_here(name) is None
    except SetpointError:
        return False


def _checkpoint(path: Path) -> Path | None:
    from setpoint.checkpoint.places import find_checkpoint

    return find_checkpoint(path)


def _of_run(path: Path) -> Path:
    """The best checkpoint of a run, or else the newest."""
    for name in ("best", "latest"):
        if (path / _CHECKPOINTS / name).is_file():
            found = _checkpoint(path / _CHECKPOINTS / name)
            if found is not None:
                return found
    raise SetpointError(
        f"{path} is a run without a checkpoint: none was saved yet, or they are gone"
    )


def _import_hint(path: Path) -> str:
    """Advice about what may be a checkpoint of another system; empty if it is none."""
    files = [path] if path.is_file() else [*path.glob("*.*")]
    if not any(file.suffix in _OTHERS or file.name == ".metadata" for file in files):
        return ""
    return "; `setpoint checkpoint import` makes one of a checkpoint of another system"


def _is_below_here(path: Path) -> bool:
    """Whether a path leads into a folder that is here, so that no id of the hub is meant."""
    return len(path.parts) > 1 and path.parent.is_dir()


def _missing(path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return "there is no such directory, and an id of the hub has the form organization/name"
    names = [other.name for other in parent.iterdir() if other.is_dir()]
    close = nearest(path.name, names, 1)
    meant = f". Did you mean {parent / close[0]}?" if close else ""
    return f"there is no such directory{meant}"


GENERATION: Final = "generation_config.json"
"""The file with what ends a text, and the settings that a model is best sampled with."""

CONFIG_FILES: Final = ("config.json", GENERATION)
"""What describes a model beside its weights."""

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
"""What a tokenizer is made of, in all its forms."""

_WEIGHTS: Final = ("model*.safetensors", "model.safetensors.index.json")


def fetch(name: str, *, weights: bool = True) -> Path:
    """The directory in the cache that holds a model of the hub, downloaded if it is not there.

    Arguments:
        name: `organization/name` or `organization/name@revision`.

    Raises:
        SetpointError: if the package is missing, the hub cannot be reached, or has no such model.
    """
    wanted = [*CONFIG_FILES, *TOKENIZER_FILES, *(_WEIGHTS if weights else ())]
    works = "A directory with config.json and model.safetensors works without the hub."
    directory = fetch_files(name, wanted, instead=works)
    if not (directory / CONFIG_FILES[0]).is_file():
        raise SetpointError(f"{name} on the hub has no config.json, so it is no model")
    return directory
