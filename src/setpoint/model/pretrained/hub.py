"""Which files of a model on the Hugging Face hub are wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from setpoint.config import SetpointError
from setpoint.hub.fetch import fetch_files

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
