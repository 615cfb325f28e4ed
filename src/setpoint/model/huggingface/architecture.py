"""Architectures of transformers: their config.json, with the overrides of a section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from setpoint.config import SetpointError, did_you_mean
from setpoint.model.pretrained.document import read_keys
from setpoint.model.pretrained.locate import locate
from setpoint.model.pretrained.quantized import KEY
from setpoint.shapes.torchao import quiet_torchao

if TYPE_CHECKING:
    from setpoint.model.foreign import HuggingFaceModel as HuggingFaceConfig

_PACKAGE = "model.type = huggingface needs the package {}: install 'setpoint[huggingface]'"


def default_vocabulary(config: HuggingFaceConfig) -> int | None:
    """The vocabulary of a kind of models of transformers, with the overrides.

    Raises:
        SetpointError: transformers is missing, or has no such kind.
    """
    return getattr(architecture(config, None), "vocab_size", None)


def config_keys(config: HuggingFaceConfig) -> dict[str, Any]:
    """Read the config.json that a section names, without its overrides.

    Returns:
        the keys; of a kind of models, which has no file, its name alone.

    Raises:
        SetpointError: if there is no such file.
    """
    if config.names_a_kind:
        return {"model_type": config.config}
    try:
        place = locate(config.config, weights=False)
    except SetpointError as error:
        raise type(error)(f"model.config = {error}") from error
    if place.kind == "checkpoint":
        raise SetpointError(
            f"model.config = {config.config} is a run or checkpoint of Setpoint, which holds "
            f"weights and no config.json of transformers; set it to what the run's own "
            f"model.config is"
        )
    return read_keys(place.directory)


def architecture(config: HuggingFaceConfig, keys: Mapping[str, Any] | None) -> Any:
    """Make the config of transformers, with the overrides.

    Arguments:
        keys: of the config.json; None: they are read from where `config.config` says.

    Raises:
        SetpointError: transformers is missing, has no such kind of models, or cannot read it.
    """
    transformers = import_transformers()
    overrides = config.overrides.dump()
    name = f"model.config = {config.config}"
    raw = dict(config_keys(config) if keys is None else keys)
    raw.pop(KEY, None)  # weights are made dense as they are read
    kind = str(raw.get("model_type"))
    if kind not in transformers.CONFIG_MAPPING:
        meant = did_you_mean(kind, list(transformers.CONFIG_MAPPING), " ")
        raise SetpointError(
            f"{name}: transformers {transformers.__version__} knows no kind of models {kind!r}."
            f"{meant} It is such a kind, a directory with a config.json, or an id of the hub."
        )
    try:
        # Of the class, so that no code that a directory brings is run.
        known = transformers.AutoConfig.for_model(kind)
        unknown = [key for key in overrides if key not in raw and not hasattr(known, key)]
        if unknown:
            meant = did_you_mean(unknown[0], [*known.to_dict(), *raw], " ")
            raise SetpointError(f"model.overrides.{unknown[0]}: {name} has no such key.{meant}")
        return type(known).from_dict({**raw, **overrides})
    except SetpointError:
        raise
    except Exception as error:  # whatever its classes raise, a value is wrong
        raise SetpointError(f"{name} cannot be read by transformers: {one_line(error)}") from error


def require_fit(config: HuggingFaceConfig, keys: Any, vocab_size: int) -> None:
    """Refuse an architecture that is too small for a tokenizer or for sequences.

    Raises:
        SetpointError: its vocabulary does not hold the tokenizer's, or it takes fewer positions.
    """
    held = getattr(keys, "vocab_size", None)
    if held is not None and held < vocab_size:
        raise SetpointError(
            f"model.config = {config.config}: its vocabulary of {held} does not hold the "
            f"{vocab_size} tokens of the tokenizer\nValid: model.overrides.vocab_size = "
            f"{vocab_size}; rows of new tokens begin as the mean of those of pretrained weights"
        )
    longest = getattr(keys, "max_position_embeddings", None)
    if longest is not None and config.max_sequence_length > longest:
        raise SetpointError(
            f"model.max_sequence_length = {config.max_sequence_length}: model.config = "
            f"{config.config} takes {longest} positions; valid: {longest} or less"
        )


def import_transformers() -> Any:
    """Import the package, whose models import torchao where it is installed.

    Raises:
        SetpointError: it is not installed.
    """
    quiet_torchao()
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise SetpointError(_PACKAGE.format(repr(error.name))) from None
    return transformers


def one_line(error: Exception) -> str:
    """What an error of transformers says, on one line and not too long."""
    text = " ".join(str(error).split())
    if not text or isinstance(error, LookupError):  # which says no more than a key
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."
