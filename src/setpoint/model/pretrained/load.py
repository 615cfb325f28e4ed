"""Modules with pretrained weights: `load_pretrained`, and the start of a new run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from setpoint.config import SetpointError
from setpoint.model.build import build_model, skeleton
from setpoint.model.config import HuggingFaceConfig, ModelConfig, TransformerConfig
from setpoint.model.pretrained.base_model import (
    checkpoint_weights,
    fill_from,
    is_built_in,
    restore,
    start_weights,
)
from setpoint.model.pretrained.check_pretrained import vocabulary_difference, vocabulary_of
from setpoint.model.pretrained.config_json import config_of, differences, read_config
from setpoint.model.pretrained.convert import Family
from setpoint.model.pretrained.fill import weights_of
from setpoint.model.pretrained.locate import Place, locate
from setpoint.model.pretrained.read_tensor import weight_dtype
from setpoint.model.pretrained.recorded_model import (
    description_of,
    job_of,
    require_no_adapter,
    tokenizer_of,
)
from setpoint.model.pretrained.weight_names import require_depth
from setpoint.shapes.peers import BroadcastReader

Divide = Callable[[nn.Module], None]
"""Keeps this rank's part of a model."""


def load_pretrained(
    path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str | None = None,
) -> nn.Module:
    """Load a trained model.

    The model is built on the meta device and checked against its files. Then its parameters are
    loaded one tensor at a time, so that loading takes little more memory than the model.

    Arguments:
        path: the directory of a Hugging Face model, a run or a checkpoint; or a Hub id, as
            `organization/name` or `organization/name@revision`. A directory takes precedence over
            an id. For a run, the best checkpoint is loaded, or else the newest.
        dtype: dtype of the parameters, such as `"bf16"`; None: as in the files.

    Returns:
        the module in evaluation mode, with its resolved configuration as `config`. It maps (B, S)
        int64 tokens to (B, S, V) logits.

    Raises:
        SetpointError: there is no such model or device, or Setpoint's transformer does not
            support it.
        RunError: the files are damaged or inconsistent, in which case nothing is loaded.
    """
    torch_dtype = weight_dtype(dtype)
    _require_device(device)
    place = locate(str(path))
    if place.kind == "checkpoint":
        require_no_adapter(place.directory)
        job = job_of(place.directory)
        vocab_size = tokenizer_of(place.directory, job.tokenizer).vocab_size
        return load_checkpoint(
            place.directory, job.model, vocab_size, device=device, dtype=torch_dtype
        ).eval()
    config, family = read_config(place.directory)
    return load_huggingface(
        place.directory, config, family, device=device, dtype=torch_dtype
    ).eval()


def _require_device(device: torch.device | str) -> None:
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise SetpointError(
            f"device = {device}: {reason}. Valid: cpu, or a device of this machine"
        ) from error


def load_huggingface(
    directory: Path,
    config: TransformerConfig,
    family: Family,
    *,
    device: torch.device | str,
    dtype: torch.dtype | None,
    divide: Divide = lambda model: None,
    broadcast: BroadcastReader | None = None,
) -> nn.Module:
    """Build a transformer and load weights from a Hugging Face directory.

    Arguments:
        dtype: dtype of the parameters; None: as in the files.
        divide, broadcast: see `load_checkpoint`.

    Raises:
        SetpointError: there are no readable weights.
        RunError: the weights are damaged, or do not match the model, in which case nothing is
            loaded.
    """
    assert config.vocab_size is not None, "every config.json has it"
    require_depth(directory, config)
    model = skeleton(config, config.vocab_size)
    weights = weights_of(directory, family, model, config)
    divide(model)
    weights.fill(model, device=device, dtype=dtype, broadcast=broadcast)
    # Location of further files of the weights; see `save_pretrained`.
    vars(model)["loaded_from"] = directory
    return model


def load_checkpoint(
    directory: Path,
    config: ModelConfig,
    vocab_size: int,
    *,
    device: torch.device | str,
    dtype: torch.dtype | None,
    prepare: Callable[[nn.Module], None] = lambda model: None,
    divide: Divide = lambda model: None,
    broadcast: BroadcastReader | None = None,
) -> nn.Module:
    """Build a model and load a Setpoint checkpoint.

    Arguments:
        dtype: dtype of the parameters; None: as in the file, which sharded parameters do not
            support.
        prepare: adds modules that the checkpoint has in addition to the model, such as an adapter.
        divide: reduces the model to this rank's part, if possible before values are loaded.
        broadcast: the rank that reads for its group; None: each rank reads its own part.

    Raises:
        DamagedCheckpoint: the checkpoint differs from what was saved.
        RunError: the weights do not match the model, in which case nothing is loaded.
    """
    keys = description_of(directory)
    if isinstance(config, TransformerConfig) and is_built_in(config):
        model = skeleton(config, vocab_size)
        prepare(model)
        weights = checkpoint_weights(directory, model, config)
        divide(model)
        weights.fill(model, device=device, dtype=dtype, broadcast=broadcast)
    else:
        if isinstance(config, HuggingFaceConfig) and keys is not None:
            model: nn.Module = config.build(vocab_size=vocab_size, keys=keys)
        else:
            model = build_model(config, vocab_size)
        prepare(model)
        read_whole(model, partial(restore, directory, model, config), broadcast)
        model = model.to(device=device, dtype=dtype)
        divide(model)
    vars(model)["loaded_from"] = directory
    return model


def read_whole(
    model: nn.Module, load: Callable[[], None], broadcast: BroadcastReader | None
) -> None:
    """Load a whole model in memory on one rank, which sends it to the others.

    Arguments:
        load: loads the model from files.
    """
    if broadcast is None:
        load()
    else:
        broadcast.read(load)
        broadcast.send([*model.state_dict().values()])


def start_from(
    config: ModelConfig,
    model: nn.Module,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    full_model: nn.Module | None = None,
    broadcast: BroadcastReader | None = None,
) -> dict[str, Any]:
    """Load the pretrained weights of a configuration into a model.

    Arguments:
        config: a resolved section with `pretrained`.
        model: model built from `config`. A model in memory keeps device and dtype; parameters of a
            transformer on the meta device are allocated on `device` in `dtype`.
        full_model: the transformer of which `model` is a part, and which the weights must match;
            None: `model` is the whole model.
        broadcast: the rank that reads for its group; None: each rank reads its own part.

    Raises:
        SetpointError: there is no such model, or its architecture differs, field by field.
        RunError: the files are damaged or inconsistent, in which case nothing is loaded.
    """
    assert config.pretrained is not None
    try:
        place = locate(config.pretrained)
    except SetpointError as error:
        raise type(error)(f"model.pretrained = {error}") from error
    if place.kind == "checkpoint":
        require_no_adapter(place.directory)
    directory = str(place.directory.resolve())
    facts: dict[str, Any] = {"name": place.name, "kind": place.kind, "directory": directory}
    known, tokens = vocabulary_of(place), getattr(full_model or model, "vocab_size", None)
    if known is not None and tokens is not None and known < tokens:
        facts["grown"] = {"from": known, "to": tokens}
    if isinstance(config, TransformerConfig):
        _start_transformer(config, model, place, device, dtype, full_model or model, broadcast)
        return facts
    read_whole(model, partial(fill_from, place, model, config), broadcast)
    return facts


def _start_transformer(
    config: TransformerConfig,
    model: nn.Module,
    place: Place,
    device: torch.device | str,
    dtype: torch.dtype | None,
    full_model: nn.Module,
    broadcast: BroadcastReader | None,
) -> None:
    mismatches = differences(config, config_of(place))
    tokens: int = full_model.vocab_size  # pyright: ignore[reportAssignmentType]
    rows = vocabulary_difference(config, tokens, place)
    if rows is not None:
        mismatches.append(rows)
    if mismatches:
        lines = "\n  ".join(
            f"model.{d.field} = {d.value}; the weights have {d.stored}" for d in mismatches
        )
        raise SetpointError(
            f"model.pretrained = {place.name} has the weights of another model, and nothing was "
            f"loaded:\n  {lines}\n`setpoint import {place.name}` writes a configuration for them."
        )
    weights = start_weights(place, full_model, config)
    weights.fill(model, device=device, dtype=dtype, broadcast=broadcast)
