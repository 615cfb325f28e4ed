"""What a checkpoint keeps beside its weights, so that they can be used without other files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.config import SetpointError
from setpoint.data.tokenizers.huggingface import HuggingFaceTokenizer
from setpoint.data.tokenizers.vocabulary import TOKENIZER, find_tokenizer
from setpoint.model.config import HuggingFaceModel
from setpoint.model.huggingface import config_keys
from setpoint.model.pretrained.hub import TOKENIZER_FILES
from setpoint.model.pretrained.locate import CONFIG
from setpoint.model.pretrained.run import DESCRIPTION
from setpoint.model.pretrained.save import GENERATION

if TYPE_CHECKING:
    from setpoint.data.tokenizers.tokenizer import Tokenizer
    from setpoint.model.config import ModelConfig

Companions = dict[str, bytes]
"""File name to content."""

NAMES = (*TOKENIZER_FILES, GENERATION, DESCRIPTION)


def companions_of(
    model: ModelConfig,
    tokenizer: Tokenizer,
    pretrained: Mapping[str, Any] | None,
    keys: Mapping[str, Any] | None = None,
) -> Companions:
    """Read the files that the model and the tokenizer of a new run come from.

    Arguments:
        pretrained: what `start_from` returned; None for random weights.
        keys: of the config.json of a model of transformers; None: of the one that it names.

    Returns:
        the files of a Hugging Face tokenizer; and, of a Hugging Face model that the run starts
        from or trains, its settings for generation and its config.json, as `DESCRIPTION`.

    Raises:
        SetpointError: if a file cannot be read.
    """
    found: Companions = {}
    if isinstance(tokenizer, HuggingFaceTokenizer):
        file = find_tokenizer(tokenizer.path)
        found = _read({n: file if n == TOKENIZER else file.with_name(n) for n in TOKENIZER_FILES})
        if tokenizer.added:
            found[TOKENIZER] = tokenizer.document.encode()
    if pretrained is not None:
        start = Path(pretrained["directory"])
        config = CONFIG if pretrained["kind"] == "huggingface" else DESCRIPTION
        found |= _read({GENERATION: start / GENERATION, DESCRIPTION: start / config})
    if isinstance(model, HuggingFaceModel):
        # Without what the section overrides, which is in its record.
        keys = config_keys(model) if keys is None else keys
        found[DESCRIPTION] = json.dumps(keys, indent=2).encode()
    return found


def companions_in(checkpoint: Path) -> Companions:
    """Read what a checkpoint keeps.

    Returns:
        its files; none of a checkpoint of an older version.

    Raises:
        SetpointError: if a file cannot be read.
    """
    return _read({name: checkpoint / name for name in NAMES})


def _read(files: Mapping[str, Path]) -> Companions:
    found: Companions = {}
    for name, file in files.items():
        try:
            found[name] = file.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SetpointError(f"{file} cannot be read: {error.strerror}") from error
    return found
