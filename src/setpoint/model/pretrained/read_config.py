"""From a config.json of transformers, or a run, to the configuration of our transformer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from setpoint.config import MISSING, Config, ConfigError, SetpointError, resolve
from setpoint.model.pretrained.document import Document, read_keys, reasons
from setpoint.model.pretrained.families import FAMILIES, family_named
from setpoint.model.pretrained.locate import CONFIG, Place, locate

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig
    from setpoint.model.pretrained.family import Family


def config_from_pretrained(path: str | Path) -> TransformerConfig:
    """Read which transformer of ours a pretrained model is. Imports no torch.

    Arguments:
        path: the directory of a Hugging Face model, of a run or of a checkpoint; or the id of a
            model on the hub.

    Returns:
        the resolved configuration; of `max_sequence_length` positions, as many as the model takes.

    Raises:
        SetpointError: if there is no such model, or it is none that our transformer can be.
    """
    return config_of(locate(str(path), weights=False))


def config_of(place: Place) -> TransformerConfig:
    """Read which transformer of ours a model is whose place is known.

    Raises:
        SetpointError: if it is none that our transformer can be.
    """
    from setpoint.model.config import TransformerConfig

    if place.kind == "huggingface":
        return read_config(place.directory)[0]
    from setpoint.model.pretrained.run import model_of

    config = model_of(place.directory)
    if not isinstance(config, TransformerConfig):
        tag = type(config).__setpoint__.tag
        raise SetpointError(
            f"{place.name} holds a model of type = {tag}, not of type = transformer"
        )
    return config


def read_config(directory: Path) -> tuple[TransformerConfig, Family]:
    """Read the config.json of a directory.

    Raises:
        SetpointError: if it is missing, no such file, of a family that is not known, or has a
            value that our transformer has not.
    """
    file = directory / CONFIG
    keys = read_keys(directory)
    family = _family_of(keys, file)
    document = Document(keys, str(file))
    fields = family.read(document)
    document.finish()
    try:
        return resolve(_transformer(fields)), family
    except ConfigError as error:
        raise SetpointError(
            f"{file} describes a model that Setpoint's transformer cannot be: {reasons(error)}"
        ) from error


def _family_of(keys: Mapping[str, Any], file: Path) -> Family:
    kind = keys.get("model_type")
    way_out = '`type = "huggingface"` trains what transformers knows as it is.'
    if not isinstance(kind, str) or kind not in FAMILIES:
        named = f"is of model_type {kind!r}, which is not known here"
        named = "names no model_type" if kind is None else named
        raise SetpointError(f"{file} {named}. Known: {', '.join(FAMILIES)}. {way_out}")
    family = family_named(kind)
    names = keys.get("architectures") or [family.architecture]
    if names != [family.architecture]:
        raise SetpointError(
            f"{file} is of the architecture {_listed(names)}, and of {kind} models "
            f"{family.architecture} is known here: a decoder with the head of a language model. "
            f"{way_out}"
        )
    return family


def _listed(names: object) -> str:
    return ", ".join(map(str, cast(list[Any], names))) if isinstance(names, list) else str(names)


def _transformer(fields: Mapping[str, Any]) -> TransformerConfig:
    """A draft in which what is as by default is not set, so that nothing is set in vain."""
    from setpoint.model.config import TransformerConfig

    declared = TransformerConfig.__setpoint__.fields
    given: dict[str, Any] = {}
    for name, value in fields.items():
        default = declared[name].initial()
        same = default is not MISSING and default == value and not isinstance(value, Config)
        if not same:
            given[name] = value
    moe, layers = given.get("moe"), fields["layers"]
    if moe is not None and all(moe.has_experts(layer) for layer in range(layers)):
        given.pop("ffn_dim", None)  # no layer has a feed-forward network of that width
    return TransformerConfig(**given)
