"""Checks of pretrained weights and transformers models, for `setpoint check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from setpoint.config import Problem, SetpointError
from setpoint.data.config import BYTES_VOCABULARY, Bytes
from setpoint.model.config import HuggingFaceConfig, ModelConfig, TransformerConfig
from setpoint.model.huggingface.architecture import type_problems, value_problems
from setpoint.model.parameters import embedding_rows
from setpoint.model.pretrained.config_json import (
    FieldDifference,
    config_of,
    differences,
    read_config,
)
from setpoint.model.pretrained.convert import SECTIONS
from setpoint.model.pretrained.locate import (
    Place,
    description_of,
    job_of,
    locate_here,
    read_keys,
    require_no_adapter,
    tokenizer_of,
)
from setpoint.model.pretrained.tensor_files import dense_tensors
from setpoint.model.pretrained.weight_names import require_files


def check_directory(config: ModelConfig) -> Iterator[Problem]:
    """Check a model against a local directory of weights; Hub ids are skipped."""
    assert config.pretrained is not None
    try:
        place = locate_here(config.pretrained)
        if place is not None:
            yield from _unfit(config, place)
    except SetpointError as error:
        yield from _problems("pretrained", error, config.pretrained)


def check_config(config: HuggingFaceConfig) -> Iterator[Problem]:
    """Check the section of a transformers model against its config.json, if it is local."""
    given, stored = config.overrides.dump(), dict[str, Any]()
    if not config.names_model_type:
        try:
            place = locate_here(config.config)
            if place is None or place.kind == "checkpoint":
                return
            stored = read_keys(place.directory)
        except SetpointError as error:
            yield from _problems("config", error, config.config)
            return
    yield from type_problems(given, stored)
    yield from value_problems(config, {**stored, **given}.get)


def check_package(config: HuggingFaceConfig) -> Iterator[Problem]:
    """Report that transformers is missing, without importing it."""
    from importlib.util import find_spec

    if find_spec("transformers") is None:
        yield Problem(
            "config",
            "the package transformers, which type = huggingface needs, is not installed",
            hint="Install 'setpoint[huggingface]'.",
        )


def check_weights(config: HuggingFaceConfig) -> Iterator[Problem]:
    """Check the headers of weight files against a transformers model.

    Skipped if a required package is missing, or if another check reports the problem.
    """
    from importlib.util import find_spec

    if any(find_spec(name) is None for name in ("torch", "transformers", "accelerate")):
        return
    from setpoint.model.huggingface.builder import unfit_weights

    assert config.pretrained is not None
    try:
        place = locate_here(config.pretrained)
        if place is None or place.kind == "checkpoint":
            return
        dense_tensors(place.directory)
        known = vocabulary_of(place)
    except SetpointError:
        return
    error = unfit_weights(config, place.directory, known)
    if error is not None:
        yield from _problems("pretrained", error, config.pretrained)


def _unfit(config: ModelConfig, place: Place) -> Iterator[Problem]:
    if place.kind == "checkpoint":
        require_no_adapter(place.directory)
    different: list[FieldDifference] = []
    if isinstance(config, TransformerConfig):
        different = differences(config, config_of(place))
        for difference in different:
            yield Problem(
                difference.field,
                f"the pretrained weights have {difference.stored}",
                valid=() if difference.stored in SECTIONS.values() else (difference.stored,),
                also=("pretrained",),
                hint=f"`setpoint import {place.name}` writes a configuration for them.",
            )
    elif place.kind == "huggingface" and not isinstance(config, HuggingFaceConfig):
        yield Problem("pretrained", foreign_names(config))
    if place.kind == "huggingface" and isinstance(config, TransformerConfig) and not different:
        stored, family = read_config(place.directory)
        require_files(place.directory, family, stored)
    elif place.kind == "huggingface":
        dense_tensors(place.directory)


def vocabulary_of(place: Place) -> int | None:
    """Vocabulary size of weights; None if only the model itself knows it."""
    if place.kind == "huggingface":
        return vocabulary_in(read_keys(place.directory))
    job = job_of(place.directory)
    model, tokenizer = job.model, job.tokenizer
    if isinstance(model, HuggingFaceConfig):
        return model.overrides.dump().get("vocab_size") or vocabulary_in(
            description_of(place.directory) or {}
        )
    if not isinstance(model, TransformerConfig):
        return None
    if model.vocab_size is not None:
        return model.vocab_size
    if isinstance(tokenizer, Bytes):
        return BYTES_VOCABULARY
    return tokenizer_of(place.directory, tokenizer).vocab_size


def vocabulary_difference(
    config: TransformerConfig, tokens: int, place: Place
) -> FieldDifference | None:
    """Describe why a model cannot accept the embedding rows of weights: it has fewer.

    Arguments:
        tokens: vocabulary size of the model, without padding rows.
    """
    known = vocabulary_of(place)
    if known is None:
        return None
    if tokens < known:
        value = f"null, {tokens} tokens" if config.vocab_size is None else str(tokens)
        return FieldDifference("vocab_size", value, str(known))
    rows, saved = embedding_rows(config, tokens), config_of(place)
    stored = embedding_rows(saved, known)
    if place.kind == "huggingface" or rows >= stored:
        return None
    if config.vocab_size is not None:
        return FieldDifference("vocab_size", str(rows), str(stored))
    value = f"{config.vocab_multiple_of}, {rows} rows"
    return FieldDifference("vocab_multiple_of", value, str(saved.vocab_multiple_of))


def declared_vocabulary(config: HuggingFaceConfig) -> int | None:
    """Vocabulary size of a transformers model; None if its config.json is not local."""
    rows = config.overrides.dump().get("vocab_size")
    if isinstance(rows, int) or config.names_model_type:
        return rows if isinstance(rows, int) else None
    place = locate_here(config.config)
    if place is None or place.kind == "checkpoint":
        return None
    return vocabulary_in(read_keys(place.directory))


def vocabulary_in(keys: Mapping[str, Any]) -> int | None:
    """Vocabulary size in a config.json; multimodal models have it in a sub-section."""
    text = keys.get("text_config")
    rows = keys.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    return rows if isinstance(rows, int) else None


def foreign_names(config: ModelConfig) -> str:
    """Reason why a custom model cannot start from a Hugging Face directory."""
    tag = type(config).__setpoint__.tag
    return (
        f"a model of type = {tag} can start from a run or a checkpoint of Setpoint, not from a "
        f"directory of Hugging Face, which uses other tensor names"
    )


def _problems(field: str, error: SetpointError, name: str) -> Iterator[Problem]:
    """Problems for an error, without the path, which is shown as the field's value."""
    head, *lines = str(error).removeprefix(f"{name}: ").removeprefix(f"{Path(name)} ").splitlines()
    findings = [line.strip() for line in lines if line.startswith("  ")]
    hint = " ".join(line for line in lines if not line.startswith("  "))
    for finding in findings or [""]:
        message, _, valid = f"{head} {finding}".strip().partition(". Valid: ")
        listed = valid.split(", ") if valid else ()
        yield Problem(field, message, valid=listed, hint=hint, kind=error.kind)
