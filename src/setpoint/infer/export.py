"""Write the weights of a job where other programs read them."""

from __future__ import annotations

import os
from pathlib import Path

from setpoint.config import SetpointError
from setpoint.data.tokenizers.huggingface import HuggingFaceTokenizer
from setpoint.data.tokenizers.vocabulary import find_tokenizer, read_vocabulary
from setpoint.infer.load import Loaded
from setpoint.infer.tasks import Export
from setpoint.model.pretrained.save import save_pretrained


def require_empty(section: Export) -> None:
    """Refuse a place that holds something, before anything is computed.

    Raises:
        SetpointError: if it is a file, or a directory that is not empty.
    """
    path = Path(os.path.expanduser(section.path))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        kind = "is not empty" if path.is_dir() else "is a file"
        raise SetpointError(f"export.path: {path} {kind}; give a new or empty directory")


def export(loaded: Loaded, section: Export) -> Path:
    """Write the weights in the format of Hugging Face, whole or not at all.

    Raises:
        SetpointError: no family of models is what this model is, or it cannot be written.
    """
    tokenizer, end = None, None
    if isinstance(loaded.tokenizer, HuggingFaceTokenizer):
        tokenizer = find_tokenizer(loaded.tokenizer.path).parent
        # What ended documents in training, if tokenizer.separator named another token.
        vocabulary, separator = read_vocabulary(loaded.tokenizer.path), loaded.tokenizer.separator
        if vocabulary.ids.get(vocabulary.named.get("eos_token", "")) != separator:
            end = next((text, n) for text, n in vocabulary.ids.items() if n == separator)
    return save_pretrained(
        loaded.model,
        section.path,
        dtype=section.dtype,
        max_shard_size=section.max_shard_size,
        family=section.family,
        tokenizer=tokenizer,
        end=end,
    )
