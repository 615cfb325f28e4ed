"""Modules with pretrained weights: `load_pretrained`, and the start of a new run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from setpoint.checkpoint.loading import LoadedCheckpoint, load_directory, load_weights
from setpoint.checkpoint.manifest import (
    BASE,
    Base,
    files_of_stems,
    read_base,
    read_manifest,
    verify,
)
from setpoint.config import ImportedComponent, RunError, SetpointError
from setpoint.files.atomic import Written, digest_file
from setpoint.files.tensor_file import dtype_named
from setpoint.files.tensor_header import FLOATS, TORCH_NAMES
from setpoint.model.build import build_model, skeleton
from setpoint.model.config import HuggingFaceConfig, ModelConfig, TransformerConfig
from setpoint.model.huggingface.builder import load_from
from setpoint.model.huggingface.language_model import HuggingFaceModel
from setpoint.model.parameters import embedding_rows
from setpoint.model.pretrained.config_json import (
    config_of,
    differences,
    foreign_names,
    read_config,
    vocabulary_difference,
    vocabulary_of,
)
from setpoint.model.pretrained.fill import Growth, Weights, cast_in_turn, weights_of
from setpoint.model.pretrained.locate import (
    Place,
    description_of,
    job_of,
    locate,
    require_no_adapter,
    tokenizer_of,
)
from setpoint.model.pretrained.tensor_files import list_tensors
from setpoint.model.pretrained.weight_names import Piece, require_depth
from setpoint.shapes.peers import BroadcastReader
from setpoint.shapes.placed import Named, Placeable
from setpoint.shapes.stored import places_of_parts, stored_parts
from setpoint.units.dtype import DType

Dtypes = Mapping[str, Sequence[str]]
"""Tensor names, each with the dtypes that its values are cast to in turn."""


def is_built_in(config: ModelConfig) -> bool:
    """True if all parts of a model belong to Setpoint, so that it can be built on the meta device.

    Returns:
        False for other models, and for transformers with imported norms, which initialize
        themselves.
    """
    return isinstance(config, TransformerConfig) and not isinstance(config.norm, ImportedComponent)


def checkpoint_weights(
    directory: Path, model: nn.Module, config: TransformerConfig, growth: Growth | None = None
) -> Weights:
    """Weights of a checkpoint, checked against a model."""
    tokens, saved = _vocab_size(model), config
    if growth is not None:  # omitted weights have the size of its own model
        tokens, saved = growth.known, job_of(directory).model
    checkpoint = completed(load_directory(directory, only=("model",)), saved, tokens, model)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    pieces = [Piece(name, name) for name in shapes]
    tensors, coded = checkpoint.tensors["model"], stored_parts(model).keys()
    return Weights(directory, pieces, tensors, shapes, coded=coded, growth=growth)


def start_weights(place: Place, model: nn.Module, config: TransformerConfig) -> Weights:
    """Weights from which a run starts, checked against its model.

    A model with a larger vocabulary grows rows for the new tokens, or uses padding rows.
    """
    known, tokens = vocabulary_of(place), _vocab_size(model)
    growth = None
    if known is not None:
        stored = embedding_rows(config_of(place), known)
        is_padded = place.is_checkpoint and stored != embedding_rows(config, tokens)
        if known < tokens or is_padded:
            growth = Growth(known, tokens, stored)
    if place.is_checkpoint:
        return checkpoint_weights(place.directory, model, config, growth)
    family = read_config(place.directory)[1]
    return weights_of(place.directory, family, model, config, growth)


def restore(directory: Path, model: nn.Module, config: ModelConfig) -> None:
    """Load the weights of a checkpoint into a complete model in memory."""
    checkpoint = load_directory(directory, only=("model",))
    if checkpoint.base is not None:
        tokens: int = getattr(model, "vocab_size", 0)  # nothing else is built with it
        outline: nn.Module | None = model
        if not isinstance(config, TransformerConfig) and any(
            name.endswith(".adapter") for name, _ in model.named_modules()
        ):
            # The omitted weights have no adapter: fill a second model without it.
            tokens = tokenizer_of(directory, job_of(directory).tokenizer).vocab_size
            outline = None
        checkpoint = completed(checkpoint, config, tokens, outline)
    load_weights(model, checkpoint)


def fill_from(place: Place, model: nn.Module, config: ModelConfig) -> None:
    """Load the weights from which a run starts into a complete model in memory.

    Raises:
        SetpointError: the weights belong to another model.
        RunError: the files are damaged.
    """
    if isinstance(model, HuggingFaceModel):
        load = partial(load_from, model, place.directory)
        if place.is_checkpoint:
            load = partial(restore, place.directory, model, config)
        model.fill(load, vocabulary_of(place))
    elif place.is_checkpoint:
        restore(place.directory, model, config)
    else:
        raise SetpointError(f"model.pretrained = {place.name}: {foreign_names(config)}")


def completed(
    checkpoint: LoadedCheckpoint,
    config: ModelConfig,
    vocab_size: int,
    model: nn.Module | None,
    place: Place | None = None,
) -> LoadedCheckpoint:
    """A checkpoint completed with the frozen parameters that it omits, if any.

    Raises:
        SetpointError: the omitted weights are missing, or belong to another model.
        RunError: the omitted weights are damaged.
    """
    path, base = checkpoint.path, checkpoint.base
    if base is None:
        return checkpoint
    place = place or find_base(path, base, config.pretrained)
    frozen = tensors_at(place, base.tensors, config, vocab_size, path, model)
    if lost := [name for name in base.tensors if name not in frozen]:
        raise RunError(f"{path} omits {lost[0]}, which {place.directory} does not have")
    tensors = {**checkpoint.tensors, "model": {**frozen, **checkpoint.tensors["model"]}}
    return replace(checkpoint, tensors=tensors, base=None)


def tensors_at(
    place: Place,
    names: Dtypes,
    config: ModelConfig,
    vocab_size: int,
    checkpoint: Path,
    model: nn.Module | None,
) -> Named:
    """Tensors of a model, from the weights that it can start from.

    Tensors of a transformer are read on placement, so that each rank reads only its part.

    Arguments:
        names: see `Base.tensors`; unknown ones are omitted.
        checkpoint: checkpoint that contains the config.json of a transformers model.
        model: a transformer with its quantized weights, on the meta device or not; None: nothing is
            quantized. Other models: in host memory, to be filled; None: it is built.
    """
    if isinstance(config, TransformerConfig):
        weights = start_weights(place, skeleton(config, vocab_size), config)
        return weights.lazily(names, {} if model is None else places_of_parts(model))
    if model is None:
        with torch.random.fork_rng():  # random state that nothing else needs
            is_hf = isinstance(config, HuggingFaceConfig)
            keys = description_of(checkpoint) if is_hf else None
            model = build_model(config, vocab_size, keys)
    fill_from(place, model, config)
    state = model.state_dict()
    return {
        name: cast_in_turn(state[name], dtypes) for name, dtypes in names.items() if name in state
    }


@dataclass(frozen=True, slots=True, eq=False)
class _InMemory(Placeable):
    """A tensor in memory as a `Placeable`."""

    tensor: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        ranges = zip(offset, shape, strict=True)
        return self.tensor[tuple(slice(start, start + size) for start, size in ranges)]


def _vocab_size(model: nn.Module) -> int:
    tokens: int = model.vocab_size  # pyright: ignore[reportAssignmentType]
    return tokens


def frozen_of(
    directory: Path, add_adapter: Callable[[Any, ModelConfig, nn.Module], None]
) -> dict[str, Placeable]:
    """Frozen parameters that a checkpoint omits; empty if it is complete."""
    base = read_base(directory, read_manifest(directory))
    if base is None:
        return {}
    job = job_of(directory)
    place, size = find_base(directory, base), tokenizer_of(directory, job.tokenizer).vocab_size
    model = None
    if isinstance(job.model, TransformerConfig) and job.adapter is not None:
        model = skeleton(job.model, size)
        add_adapter(job.adapter, job.model, model)
    tensors = tensors_at(place, base.tensors, job.model, size, directory, model)
    return {n: _InMemory(t) if isinstance(t, Tensor) else t for n, t in tensors.items()}


def verify_base(directory: Path) -> None:
    """Compare every byte of the weights to which a checkpoint refers with their checksums."""
    base = read_base(directory, read_manifest(directory))
    place = None if base is None else find_base(directory, base)
    if place is not None and place.is_checkpoint:
        verify(place.directory, read_manifest(place.directory), files_at(place))


def files_at(place: Place) -> dict[str, Written]:
    """Files of weights, identified by sizes and checksums.

    For a checkpoint they come from its manifest, since every byte is compared on reading; other
    files are read here.

    Raises:
        SetpointError: there are no such files.
    """
    known: dict[str, Written] = {}
    if place.is_checkpoint:
        files = read_manifest(place.directory).files
        names = [*files_of_stems(files).get("model", []), *([BASE] if BASE in files else [])]
        known = {name: files[name] for name in names}
        paths = [place.directory / name for name in names]
    else:
        paths = sorted({info.file for info in list_tensors(place.directory).values()})

    def measure(path: Path) -> Written:
        return known.get(path.name) or digest_file(path)

    try:
        with ThreadPoolExecutor(4) as pool:
            return {
                path.name: written
                for path, written in zip(paths, pool.map(measure, paths), strict=True)
            }
    except OSError as error:
        raise SetpointError(f"{place.directory} cannot be read: {error.strerror}") from error


def find_base(checkpoint: Path, base: Base, pretrained: str | None = None) -> Place:
    """Locate the weights from which a checkpoint takes its frozen parameters.

    Arguments:
        pretrained: the current `model.pretrained`, where the weights may have been moved.

    Raises:
        SetpointError: the weights are missing, or have changed.
    """
    reasons: list[str] = []
    for name in dict.fromkeys((base.directory, pretrained or base.name, base.name)):
        try:
            place = locate(name)
            changed = _difference(place, base.files)
        except SetpointError as error:
            reasons.append(str(error))
            continue
        if not changed:
            return place
        reasons.append(f"{name} has changed: {changed}")
    raise SetpointError(
        f"{checkpoint} omits {len(base.tensors)} frozen parameters (checkpoint.save_frozen = "
        f"false), which come from {base.name}, and these weights were not found:\n  "
        + "\n  ".join(dict.fromkeys(reasons))
        + f"\nValid: the same files at {base.directory}, or a symbolic link to them"
    )


def _difference(place: Place, files: Mapping[str, Written]) -> str:
    """First difference of weights from the recorded files; empty if there is none."""
    if not place.is_checkpoint:
        paths = {info.file.name: info.file for info in list_tensors(place.directory).values()}
        for name, written in files.items():
            size = paths[name].stat().st_size if name in paths else None
            if size not in (None, written.size):
                return f"{name} has {size} bytes, not {written.size}"
    stored = files_at(place)
    for name, written in files.items():
        if name not in stored:
            return f"it has no {name}"
        if difference := stored[name].difference(written):
            return f"{name} {difference}"
    surplus = sorted(stored.keys() - files.keys())
    return f"it has {surplus[0]}, too" if surplus else ""


Divide = Callable[[nn.Module], None]
"""Keeps this rank's part of a model."""


def load_pretrained(
    path: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | str | None = None
) -> nn.Module:
    """Load a trained model.

    The model is built on the meta device and checked against its files. Then its parameters are
    loaded one tensor at a time, so that loading takes little more memory than the model.

    Arguments:
        path: the directory of a Hugging Face model, a run or a checkpoint; or a hub id, as
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
    if place.is_checkpoint:
        require_no_adapter(place.directory)
        job = job_of(place.directory)
        config, tokens = job.model, tokenizer_of(place.directory, job.tokenizer).vocab_size
    else:
        config = read_config(place.directory)[0]
        assert config.vocab_size is not None, "every config.json has it"
        tokens = config.vocab_size
    return load_model(place, config, tokens, device=device, dtype=torch_dtype).eval()


def weight_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Dtype of weights.

    Arguments:
        dtype: a torch dtype, or a name such as `"bf16"`; None: as in the files.

    Raises:
        SetpointError: there is no such dtype, or weights cannot have it.
    """
    if dtype is None:
        return None
    result = DType.read(dtype).torch()
    if result not in map(dtype_named, FLOATS):
        known = ", ".join(TORCH_NAMES[name] for name in FLOATS)
        raise SetpointError(f"dtype = {dtype}: weights cannot have this dtype. Valid: {known}")
    return result


def _require_device(device: torch.device | str) -> None:
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise SetpointError(
            f"device = {device}: {reason}. Valid: cpu, or a device of this machine"
        ) from error


def load_model(
    place: Place,
    config: ModelConfig,
    vocab_size: int,
    *,
    device: torch.device | str,
    dtype: torch.dtype | None,
    prepare: Callable[[nn.Module], None] = lambda model: None,
    divide: Divide = lambda model: None,
    broadcast: BroadcastReader | None = None,
) -> nn.Module:
    """Build a model and load its weights.

    Arguments:
        dtype: dtype of the parameters; None: as in the files, which sharded parameters do not
            support.
        prepare: adds modules that a checkpoint has in addition to the model, such as an adapter.
        divide: reduces the model to this rank's part, if possible before values are loaded.
        broadcast: the rank that reads for its group; None: each rank reads its own part.
    """
    directory = place.directory
    if isinstance(config, TransformerConfig) and is_built_in(config):
        if not place.is_checkpoint:
            require_depth(directory, config)
        model = skeleton(config, vocab_size)
        prepare(model)
        if place.is_checkpoint:
            weights = checkpoint_weights(directory, model, config)
        else:
            weights = weights_of(directory, read_config(directory)[1], model, config)
        divide(model)
        weights.fill(model, device=device, dtype=dtype, broadcast=broadcast)
    else:
        keys = description_of(directory) if place.is_checkpoint else None
        model = build_model(config, vocab_size, keys)
        prepare(model)
        load = partial(load_from, model, directory)
        if place.is_checkpoint:
            load = partial(restore, directory, model, config)
        read_whole(model, load, broadcast)
        model = model.to(device=device, dtype=dtype)
        divide(model)
    vars(model)["loaded_from"] = directory  # which has further files; see `save_pretrained`
    return model


def read_whole(
    model: nn.Module, load: Callable[[], None], broadcast: BroadcastReader | None
) -> None:
    """Load a whole model in memory on one rank, which sends it to the others."""
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
    if place.is_checkpoint:
        require_no_adapter(place.directory)
    facts: dict[str, Any] = {
        "name": place.name,
        "kind": "checkpoint" if place.is_checkpoint else "huggingface",
        "directory": str(place.directory.resolve()),
    }
    known, tokens = vocabulary_of(place), getattr(full_model or model, "vocab_size", None)
    if known is not None and tokens is not None and known < tokens:
        facts["grown"] = {"from": known, "to": tokens}
    if not isinstance(config, TransformerConfig):
        read_whole(model, partial(fill_from, place, model, config), broadcast)
        return facts
    full = full_model or model
    mismatches = differences(config, config_of(place))
    rows = vocabulary_difference(config, _vocab_size(full), place)
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
    weights = start_weights(place, full, config)
    weights.fill(model, device=device, dtype=dtype, broadcast=broadcast)
    return facts
