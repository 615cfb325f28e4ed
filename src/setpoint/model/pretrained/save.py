"""`save_pretrained`: a directory that transformers loads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.files.atomic import publishing
from setpoint.files.tensor_file import dtype_named
from setpoint.model.build import skeleton
from setpoint.model.config import TransformerConfig
from setpoint.model.huggingface.language_model import HuggingFaceModel
from setpoint.model.initialize import plain_name
from setpoint.model.pretrained.base import checkpoint_weights, is_ours
from setpoint.model.pretrained.config_json import TOKEN_IDS, family_for, write_config
from setpoint.model.pretrained.document import read_keys
from setpoint.model.pretrained.fill import Weights, block, rows_of
from setpoint.model.pretrained.load import load_pretrained
from setpoint.model.pretrained.locate import CONFIG, GENERATION, MANIFEST, TOKENIZER_FILES, locate
from setpoint.model.pretrained.read_tensor import TensorReader, weight_dtype
from setpoint.model.pretrained.run import description_of, job_of, tokenizer_of
from setpoint.model.pretrained.tensor_files import Planned, write_tensors
from setpoint.model.pretrained.weights import Piece, pieces_of, their_shapes
from setpoint.model.transformer import Transformer
from setpoint.shapes.placed import whole_of

SHARD: Final = 5_000_000_000
"""Bytes of a file, which is what the hub is used to."""


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

    The directory appears under its name when it is complete, or not at all. Weights are written
    one tensor after the other; those of a checkpoint of a transformer of ours are read so, too, so
    that a few tensors at a time are in memory. What a family's config.json has no word for is
    refused, unless it plays a part in training only.

    Arguments:
        model: our transformer or one of transformers' that was loaded or trained here; or what
            `load_pretrained` takes.
        dtype: of the weights, such as `"bf16"`; None: as they are.
        max_shard_size: bytes that no file exceeds, but for one tensor that alone is larger.
        family: `model_type` of transformers; None: the plainest that the model can be.
        tokenizer: a directory whose tokenizer files are copied, too; None: the one that the model
            was loaded from, if it has any.
        token_ids: see `special_tokens`; None: those of the checkpoint that the model was loaded
            from, or else what the files of its origin say.
        eos_token: text of the token that the tokenizer's files call so; None: they stay as they
            are.

    Raises:
        SetpointError: if no family is such a model, or the directory cannot be written.
    """
    weights = None
    if not isinstance(model, nn.Module):
        model, weights = _opened(model)
    model = getattr(model, "_orig_mod", model)  # as torch.compile wraps it
    wanted, target = weight_dtype(dtype), Path(os.path.expanduser(path))
    if max_shard_size < 1:
        raise SetpointError(f"max_shard_size = {max_shard_size} must be at least 1 byte")
    _require_room(target, overwrite)
    origin = getattr(model, "loaded_from", None)
    if token_ids is None and origin is not None and (origin / MANIFEST).is_file():
        token_ids = special_tokens(origin, tokenizer_of(origin, job_of(origin).tokenizer))
    if isinstance(model, Transformer):
        held = _InModel(model) if weights is None else _InCheckpoint(weights)
        write = _writer(model, held, wanted, max_shard_size, family, origin)
    elif isinstance(model, HuggingFaceModel):
        write = partial(model.save_into, dtype=wanted, max_shard_size=max_shard_size)
    else:
        raise SetpointError(
            f"a {type(model).__name__} cannot be written in the format of Hugging Face; only "
            f"models of type = transformer and type = huggingface can"
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


def _opened(path: str | Path) -> tuple[nn.Module, Weights | None]:
    """The model at a path, without values where its weights can be read one by one."""
    place = locate(str(path))
    if place.kind != "checkpoint":
        return load_pretrained(path), None
    job = job_of(place.directory)
    if not isinstance(job.model, TransformerConfig) or not is_ours(job.model):
        return load_pretrained(path), None
    tokenizer = tokenizer_of(place.directory, job.tokenizer)
    model = skeleton(job.model, tokenizer.vocab_size)
    vars(model)["loaded_from"] = place.directory
    return model, checkpoint_weights(place.directory, model, job.model)


class _InModel:
    """The weights that a model has in memory, of which ranks may hold parts."""

    def __init__(self, model: nn.Module) -> None:
        self.tensors = {name: tensor.detach() for name, tensor in _tensors(model)}
        self._last: tuple[str, Tensor] | None = None

    def dtype(self, ours: str) -> torch.dtype:
        return self.tensors[ours].dtype

    def read(self, reader: TensorReader, piece: Piece) -> Tensor:
        del reader
        if piece.of_ours is None or piece.of_ours.length is None:
            return whole_of(block(self.tensors[piece.ours], piece.of_ours))
        if self._last is None or self._last[0] != piece.ours:  # of which further rows follow
            self._last = None
            self._last = piece.ours, whole_of(self.tensors[piece.ours])
        return block(self._last[1], piece.of_ours)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a model, and the buffers that files hold: biases of routers."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield plain_name(name), tensor


class _InCheckpoint:
    """The weights of a checkpoint, of which each is read when it is asked for."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def dtype(self, ours: str) -> torch.dtype:
        return dtype_named(self.weights.held[ours].dtype)

    def read(self, reader: TensorReader, piece: Piece) -> Tensor:
        return self.weights.read(reader, piece.ours, piece.of_ours)


def _writer(
    model: Transformer,
    held: _InModel | _InCheckpoint,
    dtype: torch.dtype | None,
    max_shard_size: int,
    name: str | None,
    origin: Path | None,
) -> Callable[[Path], None]:
    """What writes the config.json and the weights of a transformer of ours."""
    family = family_for(model.config, name)
    ours = {name: tuple(tensor.shape) for name, tensor in _tensors(model)}
    buffers = {plain_name(name) for name, _ in model.named_buffers()}
    pieces = pieces_of(family, model.config, *rows_of(model))
    groups: dict[str, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(piece.theirs, []).append(piece)
    shapes = their_shapes(pieces, ours)
    planned: list[Planned] = []
    for theirs, shape in shapes.items():
        first = groups[theirs][0].ours
        wanted = None if first in buffers else dtype  # which are read in fp32 only
        planned.append(Planned(theirs, shape, wanted or held.dtype(first)))
    kinds = {tensor.dtype for tensor in planned}
    main = dtype or (kinds.pop() if len(kinds) == 1 else torch.float32)
    keys = write_config(
        model.config,
        family,
        vocab_size=model.vocab_size,
        dtype=str(main).removeprefix("torch."),
        token_ids=_described(origin) if origin is not None else None,
    )

    def write(directory: Path) -> None:
        (directory / CONFIG).write_text(json.dumps(keys, indent=2) + "\n")
        with TensorReader() as reader:
            read = partial(held.read, reader)
            write_tensors(
                directory,
                planned,
                lambda name: _their_tensor(groups[name], read, shapes[name]),
                max_shard_size,
            )

    return write


def _described(origin: Path) -> dict[str, Any]:
    """What config.json says of the model that weights were loaded or trained from."""
    if (origin / MANIFEST).is_file():
        return description_of(origin) or {}
    return read_keys(origin) if (origin / CONFIG).is_file() else {}


def _their_tensor(
    pieces: list[Piece], read: Callable[[Piece], Tensor], shape: tuple[int, ...]
) -> Tensor:
    first = read(pieces[0])
    if len(pieces) == 1 and pieces[0].of_theirs is None:
        return first.T if pieces[0].transposed else first
    whole = torch.empty(shape, dtype=first.dtype, device=first.device)
    del first
    for piece in pieces:
        ours = read(piece)
        block(whole, piece.of_theirs).copy_(ours.T if piece.transposed else ours)
    return whole


def copy_files(names: Sequence[str], origin: Path | None, directory: Path) -> None:
    """Copy files that go along with weights, where they are and the directory has none.

    Arguments:
        origin: where they are looked for; None: nothing is copied.

    Raises:
        OSError: if one cannot be copied.
    """
    if origin is None:
        return
    for name in names:
        if (origin / name).is_file() and not (directory / name).exists():
            shutil.copyfile(origin / name, directory / name)


def special_tokens(directory: Path, tokenizer: Any) -> dict[str, Any]:
    """The ids of special tokens as a config.json has them.

    Arguments:
        directory: of the weights.
        tokenizer: the one of the weights, whose separator ends a text as well.

    Returns:
        `eos_token_id`, with all tokens that end a text; and of bos and pad what the tokenizer names
        so.
    """
    ids: dict[str, Any] = {"eos_token_id": as_eos(ends_of(directory, tokenizer))}
    facts = getattr(tokenizer, "chat", None)
    for name in ("bos_token", "pad_token"):
        if facts is not None and name in facts.variables:
            ids[f"{name}_id"] = facts.tokens[facts.variables[name]]
    return ids


def ends_of(directory: Path, tokenizer: Any = None) -> tuple[int, ...]:
    """The tokens that end a text: those that the files of weights name, and the separator.

    Arguments:
        directory: a checkpoint, or a model in the format of Hugging Face.
        tokenizer: the one of the weights; None: only what the files name.

    Raises:
        SetpointError: if a file cannot be read.
    """
    settings = directory / GENERATION
    is_checkpoint = (directory / MANIFEST).is_file()  # whose config.json is that of its start
    found = declared_ends(
        read_keys(directory, GENERATION) if settings.is_file() else {},
        {} if is_checkpoint else _described(directory),
    )
    # Ids without a tokenizer may have no separator.
    has_one = getattr(tokenizer, "separates", True)
    separators = [tokenizer.separator] if tokenizer is not None and has_one else []
    return tuple(dict.fromkeys([*found, *separators]))


def declared_ends(generation: Mapping[str, Any], config: Mapping[str, Any]) -> list[int]:
    """The end-of-text ids of a generation_config.json, or else of a config.json."""
    for keys in (generation, config):
        ends = keys.get("eos_token_id")
        numbers = ends if isinstance(ends, list) else [ends]
        found = [number for number in numbers if isinstance(number, int)]
        if found:
            return found
    return []


def fitting_ends(ends: Sequence[int], token_bytes: Sequence[int]) -> list[int]:
    """Those that are control tokens of another tokenizer than the one that names them."""
    return [token for token in ends if token < len(token_bytes) and not token_bytes[token]]


def as_eos(ends: Sequence[int]) -> int | list[int] | None:
    """The value of `eos_token_id`."""
    return [*ends] if len(ends) > 1 else next(iter(ends), None)


def _write_ids(directory: Path, ids: Mapping[str, Any]) -> None:
    """Write special tokens into both files of a model; a bos or pad that it has stays."""
    if ids.get("eos_token_id") is None:
        return
    for name in (CONFIG, GENERATION):
        file = directory / name
        keys = json.loads(file.read_bytes()) if file.is_file() else {}
        kept = {key: keys[key] for key in TOKEN_IDS if keys.get(key) is not None}
        ids = {**ids, **kept, "eos_token_id": ids["eos_token_id"]}
        file.write_text(json.dumps({**keys, **ids}, indent=2) + "\n")


def _name_end(directory: Path, text: str) -> None:
    """Make a token the `eos_token` in the tokenizer's files."""
    settings = "tokenizer_config.json"
    for name in (settings, "special_tokens_map.json"):
        file = directory / name
        if file.is_file() or name == settings:
            keys = json.loads(file.read_bytes()) if file.is_file() else {}
            file.write_text(json.dumps({**keys, "eos_token": text}, indent=2) + "\n")


def _require_room(target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise SetpointError(f"{target} is a file; name a directory to write the model to")
    if not overwrite and target.is_dir() and any(target.iterdir()):
        raise SetpointError(
            f"{target} holds files already, and nothing was written; name another directory, or "
            f"say overwrite=True to replace it as a whole"
        )


def publish(target: Path, write: Callable[[Path], Any]) -> None:
    """Write a directory aside, and give it its name when it is complete.

    Raises:
        SetpointError: if it cannot be written; what stood there is as before.
    """
    try:
        with publishing(target, replace=True) as aside:
            write(aside)
    except OSError as error:
        raise SetpointError(f"{target} cannot be written: {error.strerror or error}") from error
