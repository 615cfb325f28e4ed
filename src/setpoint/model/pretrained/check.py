"""What `setpoint check` says of the weights that a model is to start from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from setpoint.config import Problem, SetpointError
from setpoint.data.tokenizers.config import BYTES_VOCABULARY, Bytes
from setpoint.model.config import HuggingFaceConfig, ModelConfig, TransformerConfig
from setpoint.model.huggingface.architecture import type_problems, value_problems
from setpoint.model.parameters import embedding_rows
from setpoint.model.pretrained.config_json import Different, config_of, differences, read_config
from setpoint.model.pretrained.convert import SECTIONS
from setpoint.model.pretrained.document import read_keys
from setpoint.model.pretrained.locate import Place, locate_here
from setpoint.model.pretrained.quantized import dense_tensors
from setpoint.model.pretrained.run import description_of, job_of, require_no_adapter, tokenizer_of
from setpoint.model.pretrained.weights import require_files


def check_directory(config: ModelConfig) -> Iterator[Problem]:
    """Hold a model against the weights in a directory; an id of the hub is left alone.

    Arguments:
        config: a model with `pretrained`.
    """
    assert config.pretrained is not None
    try:
        place = locate_here(config.pretrained)
        if place is not None:
            yield from _unfit(config, place)
    except SetpointError as error:
        yield from _problems("pretrained", error, config.pretrained)


def check_config(config: HuggingFaceConfig) -> Iterator[Problem]:
    """Hold the section of a model of transformers against its config.json, if that is here."""
    given, stored = config.overrides.dump(), dict[str, Any]()
    if not config.names_a_kind:
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
    """Look for transformers, without importing it."""
    from importlib.util import find_spec

    if find_spec("transformers") is None:
        yield Problem(
            "config",
            "the package transformers, which makes models of type = huggingface, is not installed",
            hint="Install 'setpoint[huggingface]'.",
        )


def check_weights(config: HuggingFaceConfig) -> Iterator[Problem]:
    """Hold the headers of files against a model of transformers, in which their values would be.

    Without the packages that this takes, and where others say what is wrong, it finds nothing.
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
    different: list[Different] = []
    if isinstance(config, TransformerConfig):
        different = differences(config, config_of(place))
        for found in different:
            yield Problem(
                found.field,
                f"the weights to start from have {found.theirs}",
                valid=() if found.theirs in SECTIONS.values() else (found.theirs,),
                also=("pretrained",),
                hint=f"`setpoint import {place.name}` writes all that they ask for.",
            )
    elif place.kind == "huggingface" and not isinstance(config, HuggingFaceConfig):
        yield Problem("pretrained", foreign_names(config))
    if place.kind == "huggingface" and isinstance(config, TransformerConfig) and not different:
        theirs, family = read_config(place.directory)
        require_files(place.directory, family, theirs)
    elif place.kind == "huggingface":
        dense_tensors(place.directory)


def vocabulary_of(place: Place) -> int | None:
    """How many tokens weights have rows for; None where only the model itself knows.

    Raises:
        SetpointError: if files of theirs cannot be read.
    """
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


def vocabulary_difference(config: TransformerConfig, tokens: int, place: Place) -> Different | None:
    """What hinders a model from taking the rows of weights: it has fewer.

    Arguments:
        tokens: for which it has rows, without those of padding.

    Raises:
        SetpointError: see `vocabulary_of`.
    """
    known = vocabulary_of(place)
    if known is None:
        return None
    if tokens < known:
        ours = f"null, {tokens} tokens" if config.vocab_size is None else str(tokens)
        return Different("vocab_size", ours, str(known))
    rows, theirs = embedding_rows(config, tokens), config_of(place)
    stored = embedding_rows(theirs, known)
    if place.kind == "huggingface" or rows >= stored:
        return None
    if config.vocab_size is not None:
        return Different("vocab_size", str(rows), str(stored))
    ours = f"{config.vocab_multiple_of}, {rows} rows"
    return Different("vocab_multiple_of", ours, str(theirs.vocab_multiple_of))


def declared_vocabulary(config: HuggingFaceConfig) -> int | None:
    """The vocabulary of a model of transformers; None where its config.json is not on this machine.

    Raises:
        SetpointError: if the file cannot be read.
    """
    rows = config.overrides.dump().get("vocab_size")
    if isinstance(rows, int) or config.names_a_kind:
        return rows if isinstance(rows, int) else None
    place = locate_here(config.config)
    if place is None or place.kind == "checkpoint":
        return None
    return vocabulary_in(read_keys(place.directory))


def vocabulary_in(keys: Mapping[str, Any]) -> int | None:
    """The vocabulary of a config.json, which models for images and text have in a section."""
    text = keys.get("text_config")
    rows = keys.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    return rows if isinstance(rows, int) else None


def foreign_names(config: ModelConfig) -> str:
    """Why a model of the user's own cannot start from a directory of Hugging Face."""
    tag = type(config).__setpoint__.tag
    return (
        f"a model of type = {tag} can start from a run or a checkpoint of Setpoint, and not from a "
        f"directory of Hugging Face, whose names of tensors it does not know"
    )


def _problems(field: str, error: SetpointError, name: str) -> Iterator[Problem]:
    """The findings of an error, without the name, which problems show as the field's value."""
    head, *lines = str(error).removeprefix(f"{name}: ").removeprefix(f"{Path(name)} ").splitlines()
    findings = [line.strip() for line in lines if line.startswith("  ")]
    hint = " ".join(line for line in lines if not line.startswith("  "))
    for finding in findings or [""]:
        message, _, valid = f"{head} {finding}".strip().partition(". Valid: ")
        yield Problem(field, message, valid=valid.split(", ") if valid else (), hint=hint)
