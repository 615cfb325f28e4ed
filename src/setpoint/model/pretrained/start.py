"""The weights that a fresh run starts from, in place of random ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from setpoint.config import SetpointError
from setpoint.model.config import ModelConfig, TransformerConfig
from setpoint.model.pretrained.base import fill_from, start_weights
from setpoint.model.pretrained.check import vocabulary_difference, vocabulary_of
from setpoint.model.pretrained.config_json import config_of, differences
from setpoint.model.pretrained.load import read_whole
from setpoint.model.pretrained.locate import Place, locate
from setpoint.model.pretrained.peft import fold_adapters
from setpoint.model.pretrained.read_tensor import SharedReader, TensorReader
from setpoint.model.pretrained.run import require_no_adapter
from setpoint.shapes.peers import OneReader


def start_from(
    config: ModelConfig,
    model: nn.Module,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    whole: nn.Module | None = None,
    one: OneReader | None = None,
) -> dict[str, Any]:
    """Give a model the weights that its configuration names.

    Arguments:
        config: a resolved section with `pretrained`.
        model: what it has built. One with memory of its own keeps its place and dtype; the
            parameters of a transformer on the meta device are made on `device` in `dtype`.
        whole: the transformer that `model` is a part of, which the weights must fit; None: itself.
        one: the rank that reads for all of its group; None: each rank reads what it holds.

    Raises:
        SetpointError: if there is no such model, or it is of another architecture, field by field.
        RunError: if its files are damaged or do not belong together. Nothing is loaded then.
    """
    assert config.pretrained is not None
    try:
        place = locate(config.pretrained)
    except SetpointError as error:
        raise type(error)(f"model.pretrained = {error}") from error
    if place.kind == "checkpoint":
        require_no_adapter(place.directory)
    directory = str(place.directory.resolve())
    found: dict[str, Any] = {"name": place.name, "kind": place.kind, "directory": directory}
    known, tokens = vocabulary_of(place), getattr(whole or model, "vocab_size", None)
    if known is not None and tokens is not None and known < tokens:
        found["grown"] = {"from": known, "to": tokens}
    if isinstance(config, TransformerConfig):
        reader = None if one is None else SharedReader(one)
        _start_transformer(config, model, place, device, dtype, whole or model, reader)
        if config.adapters:
            found["adapters"] = fold_adapters(config, model, whole or model)
        return found
    read_whole(model, partial(fill_from, place, model, config), one)
    return found


def _start_transformer(
    config: TransformerConfig,
    model: nn.Module,
    place: Place,
    device: torch.device | str,
    dtype: torch.dtype | None,
    whole: nn.Module,
    reader: TensorReader | None,
) -> None:
    theirs = config_of(place)
    found = differences(config, theirs)
    tokens: int = whole.vocab_size  # pyright: ignore[reportAssignmentType]
    rows = vocabulary_difference(config, tokens, place)
    if rows is not None:
        found.append(rows)
    if found:
        lines = "\n  ".join(
            f"model.{d.field} = {d.ours}; the weights have {d.theirs}" for d in found
        )
        raise SetpointError(
            f"model.pretrained = {place.name} holds weights of another model, and nothing was "
            f"loaded:\n  {lines}\n`setpoint import {place.name}` writes all that they ask for."
        )
    weights = start_weights(place, whole, config)
    weights.fill(model, device=device, dtype=dtype, reader=reader)
