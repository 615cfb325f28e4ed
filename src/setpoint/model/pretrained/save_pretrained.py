"""`save_pretrained`: export to a directory that transformers loads."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.config import RunError, SetpointError, resolve
from setpoint.files import MANIFEST
from setpoint.files.atomic import publishing
from setpoint.files.tensor_file import encode_one_by_one
from setpoint.files.tensor_header import Shape
from setpoint.model.build import skeleton
from setpoint.model.config import LayerNormConfig, TransformerConfig
from setpoint.model.huggingface.builder import write_model
from setpoint.model.huggingface.language_model import HuggingFaceModel
from setpoint.model.initialize import plain_name
from setpoint.model.pretrained.config_json import TOKEN_IDS, family_for, write_config
from setpoint.model.pretrained.families import GPT2
from setpoint.model.pretrained.fill import TensorReader
from setpoint.model.pretrained.load import (
    checkpoint_weights,
    is_built_in,
    load_pretrained,
    weight_dtype,
)
from setpoint.model.pretrained.locate import (
    CONFIG,
    GENERATION,
    TOKENIZER_FILES,
    job_of,
    keys_of_origin,
    locate,
    read_keys,
    tokenizer_of,
)
from setpoint.model.pretrained.tensor_files import INDEX, SINGLE
from setpoint.model.pretrained.weight_names import Piece, block, hf_shapes, pieces_of
from setpoint.model.transformer import Transformer
from setpoint.shapes.placed import Named

SHARD: Final = 5_000_000_000
"""Bytes of a file, as usual on the Hub."""


def save_pretrained(
    model: nn.Module | str | Path,
    path: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    max_shard_size: int = SHARD,
    family: str | None = None,
    tokenizer: str | Path | None = None,
    token_ids: Mapping[str, Any] | None = None,
    eos_token: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a model in the format of Hugging Face.

    The directory appears only when it is complete. Weights are written one tensor at a time;
    weights of a transformer checkpoint are also read that way. Settings that the family's
    config.json cannot express are refused, unless they affect only training.

    Arguments:
        model: a transformer, or a transformers model loaded or trained by Setpoint; or an argument
            of `load_pretrained`.
        dtype: dtype of the weights, such as `"bf16"`; None: unchanged.
        max_shard_size: maximum bytes of a file, unless one tensor alone is larger.
        family: `model_type` of transformers; None: the one of the weights from which the model
            started, or else the simplest that can express the model.
        tokenizer: a directory with tokenizer files to copy; None: the directory from which the
            model was loaded, if it has any.
        token_ids: see `special_tokens`; None: from the checkpoint that was loaded, or else from the
            files of the original model.
        eos_token: text of the end-of-sequence token for the tokenizer's files; None: unchanged.

    Raises:
        SetpointError: no family fits, or the directory cannot be written.
    """
    weights = None
    if not isinstance(model, nn.Module):
        model, weights = _opened(model)
    model = getattr(model, "_orig_mod", model)  # as torch.compile wraps it
    weights_dtype, target = weight_dtype(dtype), Path(os.path.expanduser(path))
    if max_shard_size < 1:
        raise SetpointError(f"max_shard_size = {max_shard_size} must be at least 1 byte")
    _require_room(target, overwrite)
    origin = getattr(model, "loaded_from", None)
    if token_ids is None and origin is not None and (origin / MANIFEST).is_file():
        token_ids = special_tokens(origin, tokenizer_of(origin, job_of(origin).tokenizer))
    if isinstance(model, Transformer):
        if weights is None:
            weights = {name: tensor.detach() for name, tensor in _tensors(model)}
        write = _writer(model, weights, weights_dtype, max_shard_size, family, origin)
    elif isinstance(model, HuggingFaceModel):
        write = partial(
            write_model, model.model, dtype=weights_dtype, max_shard_size=max_shard_size
        )
    else:
        raise SetpointError(
            f"a {type(model).__name__} cannot be exported to the format of Hugging Face\n"
            f"Valid: type = transformer or huggingface"
        )

    def write_all(directory: Path) -> None:
        write(directory)
        files = origin if tokenizer is None else Path(tokenizer)
        copy_files(TOKENIZER_FILES, files, directory)
        copy_files((GENERATION,), origin or files, directory)
        if eos_token is not None:
            _name_end(directory, eos_token)
        _write_ids(directory, token_ids or {"eos_token_id": as_eos(ends_of(directory))})

    publish(target, write_all)
    return target


def _opened(path: str | Path) -> tuple[nn.Module, Named | None]:
    """The model at a path, on the meta device if its weights can be read one by one."""
    place = locate(str(path))
    if not place.is_checkpoint:
        return load_pretrained(path), None
    job = job_of(place.directory)
    if not isinstance(job.model, TransformerConfig) or not is_built_in(job.model):
        return load_pretrained(path), None
    tokenizer = tokenizer_of(place.directory, job.tokenizer)
    model = skeleton(job.model, tokenizer.vocab_size)
    vars(model)["loaded_from"] = place.directory
    return model, checkpoint_weights(place.directory, model, job.model).tensors


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters of a model, and the buffers that are saved: router biases."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield plain_name(name), tensor


def _writer(
    model: Transformer,
    weights: Named,
    dtype: torch.dtype | None,
    max_shard_size: int,
    name: str | None,
    origin: Path | None,
) -> Callable[[Path], None]:
    """A function that writes a transformer's config.json and weights."""
    described = keys_of_origin(origin)
    if name in (None, GPT2.model_type):
        model, weights = _with_biases(model, weights)
    family = family_for(model.config, name, described.get("model_type"))
    buffers = {plain_name(name) for name, _ in model.named_buffers()}
    pieces = pieces_of(family, model.config, model.vocab_size)
    groups: dict[str, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(piece.hf_name, []).append(piece)
    shapes = hf_shapes(pieces, {name: tuple(t.shape) for name, t in _tensors(model)})
    planned: list[Planned] = []
    for hf_name, shape in shapes.items():
        first = groups[hf_name][0].name
        cast = None if first in buffers else dtype  # they are read in fp32 only
        planned.append(Planned(hf_name, shape, cast or weights[first].dtype))
    kinds = {tensor.dtype for tensor in planned}
    main = dtype or (kinds.pop() if len(kinds) == 1 else torch.float32)
    keys = write_config(
        model.config,
        family,
        vocab_size=model.vocab_size,
        dtype=str(main).removeprefix("torch."),
        token_ids=described,
    )

    def write(directory: Path) -> None:
        (directory / CONFIG).write_text(json.dumps(keys, indent=2) + "\n")
        reader = TensorReader()

        def make(name: str) -> Tensor:
            return _hf_tensor(groups[name], weights, reader, shapes[name])

        write_tensors(directory, planned, make, max_shard_size)

    return write


def _with_biases(model: Transformer, weights: Named) -> tuple[Transformer, Named]:
    """A GPT-2 without biases, such as nanoGPT's, with biases of zero, which has the same logits."""
    config = model.config
    lacking = {misfit.field for misfit in GPT2.misfits(config)}
    biases = {name for name in GPT2.fixed if name != "positions"}
    if not lacking or not lacking <= biases or not isinstance(config.norm, LayerNormConfig):
        return model, weights
    draft = config.evolve()
    for name in lacking:
        setattr(draft, name, GPT2.fixed[name])
    full: Any = skeleton(resolve(draft), model.vocab_size)
    dtype = next(iter(weights.values())).dtype
    zeros = {
        name: torch.zeros(tensor.shape, dtype=dtype)
        for name, tensor in _tensors(full) if name not in weights
    }  # fmt: skip
    return full, {**weights, **zeros}


class Planned(NamedTuple):
    """A tensor to write."""

    name: str
    shape: Shape
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(
    directory: Path, planned: Sequence[Planned], make: Callable[[str], Tensor], max_shard_size: int
) -> list[Path]:
    """Write tensors to one file, or to several with an index, keeping one in memory at a time.

    Arguments:
        make: returns a tensor by its name, in the planned shape and dtype.
        max_shard_size: maximum bytes of the tensors in a file, unless a single tensor is larger.
    """
    shards = list(_shards(planned, max_shard_size))
    files: list[Path] = []
    names: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        files.append(directory / (SINGLE if len(shards) == 1 else name))
        names.update((tensor.name, name) for tensor in shard)
        with files[-1].open("wb") as file:
            tensors = {tensor.name: tensor for tensor in shard}
            file.writelines(
                encode_one_by_one(
                    tensors, {}, lambda n, of=tensors: make(n).detach().to("cpu", of[n].dtype)
                )
            )
    if len(shards) == 1:
        return files
    total = sum(tensor.size for tensor in planned)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return [*files, directory / INDEX]


def _shards(planned: Sequence[Planned], most: int) -> Iterator[list[Planned]]:
    shard: list[Planned] = []
    size = 0
    for tensor in planned:
        if shard and size + tensor.size > most:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.size
    yield shard


def _hf_tensor(pieces: list[Piece], weights: Named, reader: TensorReader, shape: Shape) -> Tensor:
    first = reader.block(weights[pieces[0].name], pieces[0].block)
    if len(pieces) == 1 and pieces[0].hf_block is None:
        return first.T if pieces[0].transposed else first
    full = torch.empty(shape, dtype=first.dtype, device=first.device)
    del first
    for piece in pieces:
        values = reader.block(weights[piece.name], piece.block)
        block(full, piece.hf_block).copy_(values.T if piece.transposed else values)
    return full


def copy_files(names: Sequence[str], origin: Path | None, directory: Path) -> None:
    """Copy files that accompany weights, unless the directory already contains them.

    Arguments:
        origin: directory to copy from; None: nothing is copied.
    """
    if origin is None:
        return
    for name in names:
        if (origin / name).is_file() and not (directory / name).exists():
            shutil.copyfile(origin / name, directory / name)


def special_tokens(directory: Path, tokenizer: Any) -> dict[str, Any]:
    """Ids of special tokens, as in a config.json.

    Returns:
        `eos_token_id`, with all end-of-text tokens, and the bos and pad tokens named by the
        tokenizer.
    """
    ids: dict[str, Any] = {"eos_token_id": as_eos(ends_of(directory, tokenizer))}
    facts = getattr(tokenizer, "chat", None)
    for name in ("bos_token", "pad_token"):
        if facts is not None and name in facts.variables:
            ids[f"{name}_id"] = facts.tokens[facts.variables[name]]
    return ids


def ends_of(directory: Path, tokenizer: Any = None) -> tuple[int, ...]:
    """End-of-text tokens: those named in the files of the weights, and the separator.

    Arguments:
        directory: a checkpoint, or a model in the format of Hugging Face.
        tokenizer: tokenizer of the weights; None: only tokens named in the files.
    """
    is_checkpoint = (directory / MANIFEST).is_file()  # its config.json is that of its start
    ends = declared_ends(
        read_keys(directory, GENERATION, optional=True),
        {} if is_checkpoint else keys_of_origin(directory),
    )
    # Ids without a tokenizer may have no separator.
    has_one = getattr(tokenizer, "separates", True)
    separators = [tokenizer.separator] if tokenizer is not None and has_one else []
    return tuple(dict.fromkeys([*ends, *separators]))


def declared_ends(generation: Mapping[str, Any], config: Mapping[str, Any]) -> list[int]:
    """End-of-text ids from a generation_config.json, or else from a config.json."""
    for keys in (generation, config):
        ends = keys.get("eos_token_id")
        numbers = ends if isinstance(ends, list) else [ends]
        ids = [number for number in numbers if isinstance(number, int)]
        if ids:
            return ids
    return []


def fitting_ends(ends: Sequence[int], token_bytes: Sequence[int]) -> list[int]:
    """The ids that are also control tokens of another tokenizer."""
    return [token for token in ends if token < len(token_bytes) and not token_bytes[token]]


def as_eos(ends: Sequence[int]) -> int | list[int] | None:
    """Value for `eos_token_id`: a single id as an int, several as a list."""
    return [*ends] if len(ends) > 1 else next(iter(ends), None)


def _write_ids(directory: Path, ids: Mapping[str, Any]) -> None:
    """Write special tokens into both files of a model; existing bos and pad tokens are kept."""
    if ids.get("eos_token_id") is None:
        return
    for name in (CONFIG, GENERATION):
        file = directory / name
        keys = json.loads(file.read_bytes()) if file.is_file() else {}
        kept = {key: keys[key] for key in TOKEN_IDS if keys.get(key) is not None}
        ids = {**ids, **kept, "eos_token_id": ids["eos_token_id"]}
        file.write_text(json.dumps({**keys, **ids}, indent=2) + "\n")


def _name_end(directory: Path, text: str) -> None:
    """Set `eos_token` in the tokenizer's files."""
    settings = "tokenizer_config.json"
    for name in (settings, "special_tokens_map.json"):
        file = directory / name
        if file.is_file() or name == settings:
            keys = json.loads(file.read_bytes()) if file.is_file() else {}
            file.write_text(json.dumps({**keys, "eos_token": text}, indent=2) + "\n")


def _require_room(target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise SetpointError(f"{target} is a file, not a directory")
    if not overwrite and target.is_dir() and any(target.iterdir()):
        raise SetpointError(
            f"{target} is not empty, so nothing was written; choose another directory, or pass "
            f"overwrite=True to replace it"
        )


def publish(target: Path, write: Callable[[Path], Any]) -> None:
    """Write a temporary directory, and rename it when it is complete.

    Raises:
        RunError: the directory cannot be written; an existing one remains unchanged.
    """
    try:
        with publishing(target, replace=True) as aside:
            write(aside)
            mode = aside.stat().st_mode & 0o666
            for file in aside.iterdir():  # the package safetensors shuts others out of its files
                file.chmod(mode)
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror or error}") from error
