"""Write the weights of a job where other programs read them."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from setpoint.config import SetpointError
from setpoint.data.tokenizers.huggingface import HuggingFaceTokenizer
from setpoint.data.tokenizers.tokenizer import Tokenizer
from setpoint.data.tokenizers.vocabulary import find_tokenizer, read_vocabulary
from setpoint.infer.tasks import Export
from setpoint.model.pretrained.save import SHARD, save_pretrained, special_tokens


def require_empty(section: Export) -> None:
    """Refuse a place that holds something, before anything is computed.

    Raises:
        SetpointError: if it is a file, or a directory that is not empty.
    """
    path = Path(os.path.expanduser(section.path))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        kind = "is not empty" if path.is_dir() else "is a file"
        raise SetpointError(f"export.path: {path} {kind}; give a new or empty directory")


def export(
    model: nn.Module | Path,
    tokenizer: Tokenizer,
    path: Path,
    *,
    directory: Path | None = None,
    dtype: str | None = None,
    max_shard_size: int = SHARD,
    family: str | None = None,
) -> Path:
    """Write the weights in the format of Hugging Face, whole or not at all.

    Arguments:
        model: in memory, or a checkpoint of which a few tensors at a time are read.
        directory: of the weights, whose files name tokens that end a text beside the tokenizer's
            separator; None: only what the files of the model's origin say.
        dtype, max_shard_size, family: see `save_pretrained`.

    Raises:
        SetpointError: no family of models is what this model is, or it cannot be written.
    """
    files, end, ids = None, None, None
    if directory is not None:
        ids = special_tokens(directory, tokenizer)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        files = find_tokenizer(tokenizer.path).parent
        # What ended documents in training, if tokenizer.separator named another token. A chat
        # template that writes eos_token goes on to mean the same one.
        vocabulary, separator = read_vocabulary(tokenizer.path), tokenizer.separator
        named = vocabulary.named.get("eos_token")
        written = named and any("eos_token" in each for each in vocabulary.templates.values())
        if not written and vocabulary.ids.get(named or "") != separator:
            end = next(text for text, number in vocabulary.ids.items() if number == separator)
    return save_pretrained(
        model,
        path,
        dtype=dtype,
        max_shard_size=max_shard_size,
        family=family,
        tokenizer=files,
        token_ids=ids,
        eos_token=end,
    )
