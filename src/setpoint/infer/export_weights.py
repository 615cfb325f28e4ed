"""Export of the weights of an inference job: a Hugging Face model, or the adapter alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import nn

from setpoint.adapter.apply import merge_all
from setpoint.config import SetpointError, load_record
from setpoint.data.tokenizers.tokenizer import HuggingFaceTokenizer, Tokenizer
from setpoint.data.tokenizers.vocabulary import TOKENIZER, find_tokenizer, read_vocabulary
from setpoint.infer.adopt import find_weights
from setpoint.infer.config import Inference
from setpoint.infer.export_peft import write_peft
from setpoint.infer.loaded_model import LoadedModel, load, naming_whole_ones
from setpoint.infer.tasks import Export
from setpoint.model.pretrained.base import is_ours
from setpoint.model.pretrained.locate import CONFIG
from setpoint.model.pretrained.run import tokenizer_of
from setpoint.model.pretrained.save import SHARD, save_pretrained, special_tokens
from setpoint.train.config import Job
from setpoint.units.dtype import DType

QWEN2_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?"
"""Part of the regular expression of Qwen2's pre-tokenizer that tells it from others."""


def require_empty(section: Export) -> None:
    """Refuse a place that holds something, before anything is computed.

    Raises:
        SetpointError: if it is a file, or a directory that is not empty.
    """
    path = Path(os.path.expanduser(section.path))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        kind = "is not empty" if path.is_dir() else "is a file"
        raise SetpointError(f"export.path: {path} {kind}; give a new or empty directory")


def export_job(job: Inference, loaded: LoadedModel | None) -> tuple[Path, list[str]]:
    """Export the weights of a job, by this process alone.

    Arguments:
        loaded: the whole model, if it is in memory.

    Returns:
        their directory, and cautions about them.
    """
    section = job.export
    assert section is not None
    place = find_weights(job.weights.path, job.weights.checkpoint, weights=True)
    directory = place.directory
    options: dict[str, Any] = {"dtype": section.dtype, "family": section.family}
    with naming_whole_ones(directory):
        if place.record and is_ours(job.model) and job.adapter is None:
            # A few tensors at a time, as they were saved.
            model, tokenizer = directory, tokenizer_of(directory, job.tokenizer)
        else:
            loaded = loaded or load(job)
            model, tokenizer = loaded.model, loaded.tokenizer
        if section.adapter:
            assert job.adapter is not None and isinstance(model, nn.Module)
            record = place.record and load_record(Job, str(place.record)).values
            options["base"] = record["model"].get("pretrained") if record else None
            options["dtype"] = DType(section.dtype).torch()
            return write_peft(model, job.adapter, section.path, tokenizer=directory, **options), []
        if job.adapter is not None:
            assert isinstance(model, nn.Module)
            merge_all(model)
        options["max_shard_size"] = section.max_shard_size
        path = export(model, tokenizer, section.path, directory=directory, **options)
    caution = tokenizer_caution(path)
    return path, [caution] if caution else []


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
        written = named and any(
            "eos_token" in template for template in vocabulary.templates.values()
        )
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


def tokenizer_caution(directory: Path) -> str:
    """Caution that transformers reads the tokenizer of an export otherwise; empty if it does not.

    As of version 5, its class for the model_type qwen2 replaces the pre-tokenizer of the files.
    """
    config, tokenizer = directory / CONFIG, directory / TOKENIZER
    if not (config.is_file() and tokenizer.is_file()):
        return ""
    if json.loads(config.read_bytes()).get("model_type") != "qwen2":
        return ""
    split = json.dumps(json.loads(tokenizer.read_bytes()).get("pre_tokenizer"))
    if json.dumps(QWEN2_SPLIT)[1:-1] in split:
        return ""
    return (
        "AutoTokenizer of transformers reads tokenizers of model_type qwen2 with Qwen2's "
        "pre-tokenizer, and this one has another, so that texts get other tokens there; read it by "
        f"PreTrainedTokenizerFast.from_pretrained({str(directory)!r})"
    )
