"""Weights of a checkpoint, including one that omits its frozen parameters.

Such a checkpoint (`checkpoint.save_frozen = false`) records the directory and the checksums of the
weights it started from. Both are used to locate the weights, which are then read as if the
checkpoint contained them.
"""

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
from setpoint.model.build import build_model, skeleton
from setpoint.model.config import HuggingFaceConfig, ModelConfig, TransformerConfig
from setpoint.model.huggingface.language_model import HuggingFaceModel
from setpoint.model.parameters import embedding_rows
from setpoint.model.pretrained.check_pretrained import foreign_names, vocabulary_of
from setpoint.model.pretrained.config_json import config_of, read_config
from setpoint.model.pretrained.fill import Growth, Weights, weights_of
from setpoint.model.pretrained.locate import Place, locate
from setpoint.model.pretrained.read_tensor import TensorReader
from setpoint.model.pretrained.recorded_model import (
    description_of,
    job_of,
    model_of,
    tokenizer_of,
)
from setpoint.model.pretrained.tensor_files import list_tensors
from setpoint.model.pretrained.weight_names import Piece
from setpoint.shapes.placed import Named, Placeable
from setpoint.shapes.stored import QuantizedPart, Stored, places_of_parts, stored_parts

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
    """Weights of a checkpoint, checked against a model.

    Arguments:
        growth: see `Weights`.

    Raises:
        DamagedCheckpoint: the file differs from what was saved.
        RunError: the weights do not match the model, or the omitted weights are missing.
    """
    tokens, saved = _vocab_size(model), config
    if growth is not None:  # omitted weights have the size of its own model
        tokens, saved = growth.known, model_of(directory)
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
        is_padded = place.kind == "checkpoint" and stored != embedding_rows(config, tokens)
        if known < tokens or is_padded:
            growth = Growth(known, tokens, stored)
    if place.kind == "checkpoint":
        return checkpoint_weights(place.directory, model, config, growth)
    family = read_config(place.directory)[1]
    return weights_of(place.directory, family, model, config, growth)


def restore(directory: Path, model: nn.Module, config: ModelConfig) -> None:
    """Load the weights of a checkpoint into a complete model in memory.

    Raises:
        DamagedCheckpoint: the checkpoint differs from what was saved.
        RunError: the weights do not match the model, or the omitted weights are missing.
    """
    checkpoint = load_directory(directory, only=("model",))
    if checkpoint.base is not None:
        tokens: int = getattr(model, "vocab_size", 0)  # nothing else is built with it
        outline: nn.Module | None = model
        if not isinstance(config, TransformerConfig) and _has_adapter(model):
            # The omitted weights have no adapter: fill a second model without it.
            tokens = tokenizer_of(directory, job_of(directory).tokenizer).vocab_size
            outline = None
        checkpoint = completed(checkpoint, config, tokens, outline)
    load_weights(model, checkpoint)


def _has_adapter(model: nn.Module) -> bool:
    return any(name.endswith(".adapter") for name, _ in model.named_modules())


def fill_from(place: Place, model: nn.Module, config: ModelConfig) -> None:
    """Load the weights from which a run starts into a complete model in memory.

    Raises:
        SetpointError: the weights belong to another model.
        RunError: the files are damaged.
    """
    if isinstance(model, HuggingFaceModel):
        load = partial(model.load_from, place.directory)
        if place.kind == "checkpoint":
            load = partial(restore, place.directory, model, config)
        model.fill(load, vocabulary_of(place))
    elif place.kind == "checkpoint":
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

    Arguments:
        model: see `tensors_at`.
        place: location of these parameters; None: search for it.

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

    Raises:
        SetpointError: the weights belong to another model.
        RunError: the weights are damaged.
    """
    if isinstance(config, TransformerConfig):
        return _frozen_tensors(place, names, config, vocab_size, model)
    if model is None:
        with torch.random.fork_rng():  # random state that nothing else needs
            is_hf = isinstance(config, HuggingFaceConfig)
            keys = description_of(checkpoint) if is_hf else None
            model = build_model(config, vocab_size, keys)
    fill_from(place, model, config)
    state = model.state_dict()
    return {name: _cast(state[name], dtypes) for name, dtypes in names.items() if name in state}


def _cast(tensor: Tensor, dtypes: Sequence[str]) -> Tensor:
    for name in dtypes:
        tensor = tensor.to(dtype_named(name))
    return tensor


@dataclass(frozen=True, slots=True, eq=False)
class Frozen(Placeable):
    """A tensor from other weights, read when it is placed; see `Placeable`."""

    weights: Weights
    name: str
    dtypes: tuple[str, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype after all casts."""
        return dtype_named(self.dtypes[-1])

    @property
    def shape(self) -> torch.Size:
        """Shape in the model."""
        return torch.Size(self.weights.shapes[self.name])

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        ranges = [(start, start + size) for start, size in zip(offset, shape, strict=True)]
        values = self.weights.box(TensorReader(), self.name, ranges, dtype_named(self.dtypes[0]))
        return _cast(values, self.dtypes[1:])


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


@dataclass(frozen=True, slots=True, eq=False)
class Requantized(Placeable):
    """Part of a weight that is requantized on placement; see `Placeable`.

    Arguments:
        last: the parts of the last quantized weight, by name and piece; shared between instances.
    """

    weights: Weights
    part: QuantizedPart
    dtypes: tuple[str, ...]
    last: dict[tuple[str, int], dict[str, Tensor]]

    @property
    def dtype(self) -> torch.dtype:
        return dtype_named(self.dtypes[-1])

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.part.shape)

    def box(self, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """See `Placeable.box`; of packed experts, only those in the box are quantized."""
        pieces = self.part.module.pieces(every=True)
        starts = list(offset)
        if len(pieces) > 1:
            pieces, starts[0] = pieces[offset[0] : offset[0] + shape[0]], 0
        values = torch.cat([self._parts(rows)[self.part.param] for rows in pieces])
        ranges = zip(starts, shape, strict=True)
        values = values[tuple(slice(start, start + size) for start, size in ranges)]
        return _cast(values, self.dtypes[1:])

    def _parts(self, rows: tuple[int, int]) -> dict[str, Tensor]:
        name, key = self.part.weight, (self.part.weight, rows[0])
        if any(weight != name for weight, _ in self.last):
            self.last.clear()
        if key not in self.last:
            stored: Stored = self.part.module
            reader = TensorReader()
            coded = self.weights.coded_rows(reader, name, rows)
            parts = None if coded is None else stored.parts_from(coded)
            if parts is None:
                parts = stored.parts_of(self.weights.rows(reader, name, rows))
            self.last[key] = parts
        return self.last[key]


def _frozen_tensors(
    place: Place, names: Dtypes, config: TransformerConfig, vocab_size: int, model: nn.Module | None
) -> dict[str, Placeable]:
    weights = start_weights(place, skeleton(config, vocab_size), config)
    parts = {} if model is None else places_of_parts(model)
    last: dict[tuple[str, int], dict[str, Tensor]] = {}
    tensors: dict[str, Placeable] = {}
    for name, dtypes in names.items():
        if name in weights.pieces:
            tensors[name] = Frozen(weights, name, tuple(dtypes))
        elif name in parts and parts[name].weight in weights.pieces:
            tensors[name] = Requantized(weights, parts[name], tuple(dtypes), last)
    return tensors


def _vocab_size(model: nn.Module) -> int:
    tokens: int = model.vocab_size  # pyright: ignore[reportAssignmentType]
    return tokens


def base_of(directory: Path) -> Base | None:
    """The record of the weights that a checkpoint omits; None if it is complete.

    Raises:
        DamagedCheckpoint: the record differs from what was saved.
    """
    return read_base(directory, read_manifest(directory))


def frozen_of(
    directory: Path, add_adapter: Callable[[Any, ModelConfig, nn.Module], None]
) -> dict[str, Placeable]:
    """Frozen parameters that a checkpoint omits; empty if it is complete.

    Arguments:
        add_adapter: adds the adapter of a section to a model; see `setpoint.infer.loaded_model`.

    Raises:
        SetpointError: the weights with these parameters are missing, or have changed.
    """
    base = base_of(directory)
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
    """Compare every byte of the weights to which a checkpoint refers with their checksums.

    Raises:
        SetpointError: the weights are missing, or have changed.
    """
    base = base_of(directory)
    place = None if base is None else find_base(directory, base)
    if place is not None and place.kind == "checkpoint":
        verify(place.directory, read_manifest(place.directory), files_at(place))


def files_at(place: Place) -> dict[str, Written]:
    """Files of weights, identified by sizes and checksums.

    For a checkpoint they come from its manifest, since every byte is compared on reading; other
    files are read here.

    Raises:
        SetpointError: there are no such files.
    """
    known: dict[str, Written] = {}
    if place.kind == "checkpoint":
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
    if place.kind == "huggingface":
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
