"""PEFT adapters, folded into the weights from which a model starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.config import RunError, SetpointError
from setpoint.files.tensor_header import read_header
from setpoint.model.initialize import plain_name
from setpoint.model.pretrained.config_json import family_for
from setpoint.model.pretrained.fill import EMBEDDING
from setpoint.model.pretrained.peft_files import (
    BASE,
    BEFORE,
    LOW_RANK,
    VALID_TIED,
    WEIGHTS,
    PeftFiles,
    changes_one,
    saves_again,
)
from setpoint.model.pretrained.read_tensor import FileTensor
from setpoint.model.pretrained.recorded_model import keys_of_origin
from setpoint.model.pretrained.weight_names import HEAD, Piece, block, pieces_of
from setpoint.shapes.placed import put, whole_of

if TYPE_CHECKING:
    from setpoint.model.config import PretrainedAdapter, TransformerConfig


class _Adapter(NamedTuple):
    """An adapter of one matrix as stored in files: B A times a scale, as (outputs, inputs).

    Arguments:
        transposed: the matrix is (inputs, outputs).
        magnitude: row norms of the merged weight (DoRA).
    """

    a: Tensor
    b: Tensor
    scale: float
    magnitude: Tensor | None
    transposed: bool
    is_embedding: bool


class _Contents(NamedTuple):
    """The tensors of an adapter.

    Arguments:
        adapters: by module.
        saved: fully trained tensors, by name.
        base: base matrices, which PEFT writes together with adapters of embeddings.
    """

    adapters: dict[str, _Adapter]
    saved: dict[str, Tensor]
    base: dict[str, Tensor]


def read_adapter(files: PeftFiles) -> _Contents:
    """Read the tensors of an adapter.

    Raises:
        RunError: the files are damaged or inconsistent.
    """
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    saved: dict[str, Tensor] = {}
    base: dict[str, Tensor] = {}
    for name, info in read_header(files.path / WEIGHTS).items():
        tensor, path = FileTensor(info).whole(), name.removeprefix(BEFORE)
        match = LOW_RANK.fullmatch(path)
        if match is not None:
            parts[match["module"]][match["what"]] = tensor.float()
        elif BASE in path:
            base[path.replace(BASE, "")] = tensor
        else:
            saved[path] = tensor
    adapters = {module: _adapter(files, module, tensors) for module, tensors in parts.items()}
    return _Contents(adapters, saved, base)


def _adapter(files: PeftFiles, module: str, tensors: Mapping[str, Tensor]) -> _Adapter:
    is_embedding = "embedding_A" in tensors
    before = "embedding_" if is_embedding else ""
    if f"{before}A" not in tensors or f"{before}B" not in tensors:
        raise RunError(f"{files.path / WEIGHTS}: {module} has only one of A and B")
    a, b = tensors[f"{before}A"], tensors[f"{before}B"]
    rank = a.shape[0]
    if a.ndim != 2 or b.ndim != 2 or b.shape[1] != rank:
        raise RunError(
            f"{files.path / WEIGHTS}: {module} has A {tuple(a.shape)} and B {tuple(b.shape)}"
        )
    scale = files.scale_of(module, rank)
    transposed = bool(files.keys.get("fan_in_fan_out")) and not is_embedding
    return _Adapter(a, b, scale, tensors.get("magnitude_vector"), transposed, is_embedding)


@torch.no_grad()
def fold_adapters(
    config: TransformerConfig, model: nn.Module, full_model: nn.Module, directory: Path
) -> list[dict[str, Any]]:
    """Fold the adapters of a section into the weights of a model; a collective of all ranks.

    Arguments:
        model: the model with its weights; may be sharded.
        full_model: the whole model, without values.
        directory: directory of the weights; modules have the names used in their family.

    Returns:
        the entry of each adapter in the run's record.

    Raises:
        SetpointError: an adapter is missing, or belongs to another model. The model is then
            unusable.
    """
    pieces: dict[str, list[Piece]] = defaultdict(list)
    family = family_for(config, origin=keys_of_origin(directory).get("model_type"))
    tokens: int = full_model.vocab_size  # pyright: ignore[reportAssignmentType]
    for piece in pieces_of(family, config, tokens):
        pieces[piece.hf_name].append(piece)
    parameters = {plain_name(name): p for name, p in model.named_parameters()}
    all_files = [PeftFiles(section.path) for section in config.adapters]  # all before any is read
    contents = [
        (section, files, read_adapter(files))
        for section, files in zip(config.adapters, all_files, strict=True)
    ]
    for _, _, content in contents:
        # The base as it is filled now; another one, with more tokens perhaps, is a saved matrix.
        for name, tensor in content.base.items():
            tied = config.tie_embeddings and name == HEAD
            current = pieces[_embedding_of(pieces) if tied else name]
            if not all(_is_filled(parameters, piece, tensor) for piece in current):
                content.saved[name] = tensor
    facts: list[dict[str, Any]] = []
    saved: dict[str, str] = {}
    for section, files, (adapters, tensors, _) in contents:
        if config.tie_embeddings:
            _tie(parameters, pieces, section.path, adapters, tensors)
        _require_fit(section, adapters, tensors, pieces)
        for name, tensor in tensors.items():
            if saved.setdefault(name, section.path) is not section.path:
                raise SetpointError(
                    f"model.adapters: {section.path} {saves_again(name, saved[name])}"
                )
            for piece in pieces[name]:
                _change(parameters, piece, partial(_replaced, tensor))
        for module, adapter in adapters.items():
            for piece in pieces[f"{module}.weight"]:
                _change(parameters, piece, partial(_merged, adapter, section.weight))
        facts.append({"path": str(files.path), "weight": section.weight, "sha256": files.digest()})
    return facts


def _require_fit(
    section: PretrainedAdapter,
    adapters: Mapping[str, _Adapter],
    tensors: Mapping[str, Tensor],
    pieces: Mapping[str, list[Piece]],
) -> None:
    """Refuse an adapter of another model, and a weight that makes its scaling impossible."""
    known = {f"{module}.weight" for module in adapters} | tensors.keys()
    if unknown := sorted(known - pieces.keys()):
        raise SetpointError(
            f"model.adapters: {section.path} belongs to another model: it changes "
            f"{unknown[0]}, and this one has {', '.join([*pieces][:3])}, ..."
        )
    if section.weight == 1:
        return
    reason = None
    if tensors:
        reason = f"fully trained modules, such as {min(tensors)},"
    elif any(adapter.magnitude is not None for adapter in adapters.values()):
        reason = "magnitudes (DoRA),"
    if reason is not None:
        raise SetpointError(
            f"model.adapters: {section.path} has {reason} which cannot be scaled by "
            f"{section.weight:g}\nValid: weight = 1"
        )


def _is_filled(parameters: Mapping[str, Tensor], piece: Piece, tensor: Tensor) -> bool:
    """True if a parameter equals a tensor, or is in another pipeline stage."""
    if piece.name not in parameters:
        return True
    current = block(whole_of(parameters[piece.name]), piece.block)
    given = block(tensor, piece.hf_block).to(current)
    return torch.equal(current.T if piece.transposed else current, given)


def _embedding_of(pieces: Mapping[str, list[Piece]]) -> str:
    """Name of the embedding in the files."""
    return next(name for name, group in pieces.items() if any(p.name == EMBEDDING for p in group))


def _tie(
    parameters: Mapping[str, Tensor],
    pieces: Mapping[str, list[Piece]],
    path: str,
    adapters: dict[str, _Adapter],
    tensors: dict[str, Tensor],
) -> None:
    """Keep one update of a tied matrix if embedding and output matrix are changed equally.

    Raises:
        SetpointError: the two are changed differently, because PEFT unties them.
    """
    embedding = _embedding_of(pieces)
    names = [n for n in (embedding, HEAD) if n in tensors or n.removesuffix(".weight") in adapters]
    if names and EMBEDDING in parameters:
        filled = block(whole_of(parameters[EMBEDDING]), pieces[embedding][0].block)
        changed: list[Tensor] = []
        for name in (embedding, HEAD):
            matrix = tensors.get(name, filled).to(filled).float()
            adapter = adapters.get(name.removesuffix(".weight"))
            if adapter is not None:
                matrix = _merged(adapter, 1.0, matrix, Piece(EMBEDDING, name))
            changed.append(matrix)
        if changed[0].shape != changed[1].shape or not torch.allclose(*changed, rtol=1e-5):
            module = (names[0] if len(names) == 1 else embedding).removesuffix(".weight")
            raise SetpointError(
                f"model.adapters: {path} {changes_one(module.rpartition('.')[2])}\n"
                f"Valid: {VALID_TIED}"
                if len(names) == 1
                else f"model.adapters: {path} changes {module} and {HEAD} differently, which "
                "are tied\nValid: weights with model.tie_embeddings = false"
            )
    tensors.pop(HEAD, None)
    adapters.pop(HEAD.removesuffix(".weight"), None)


def _change(
    parameters: Mapping[str, Tensor], piece: Piece, change: Callable[[Tensor, Piece], Tensor]
) -> None:
    """Replace a block of a parameter by a function of it."""
    if piece.name not in parameters:
        return  # it is on another stage of a pipeline
    parameter = parameters[piece.name]
    full = whole_of(parameter).clone()
    current = block(full, piece.block)
    in_file = current.T if piece.transposed else current
    changed = change(in_file.float(), piece)
    if changed.shape != in_file.shape:
        raise SetpointError(
            f"model.adapters: {piece.hf_name} is {tuple(in_file.shape)} in the model, and "
            f"{tuple(changed.shape)} in the adapter"
        )
    current.copy_(changed.T if piece.transposed else changed)
    put(parameter, full)


def _replaced(tensor: Tensor, weight: Tensor, piece: Piece) -> Tensor:
    """A block of an adapter's tensor, which replaces that of the weight."""
    del weight
    return block(tensor, piece.hf_block)


def _merged(adapter: _Adapter, share: float, weight: Tensor, piece: Piece) -> Tensor:
    """A block of a weight with the adapter's update, as PEFT merges it."""
    if adapter.is_embedding:
        update, dim = (adapter.b @ adapter.a).T, 0
    else:
        product = adapter.b @ adapter.a
        update, dim = (product.T, 0) if adapter.transposed else (product, 1)
    update = block(update, piece.hf_block) * (adapter.scale * share)
    if update.shape != weight.shape:
        return update
    merged = weight + update
    if adapter.magnitude is None:
        return merged
    lengths = torch.linalg.vector_norm(merged, dim=dim, keepdim=True)
    magnitude = adapter.magnitude.float().flatten()
    if piece.hf_block is not None and piece.hf_block.dim != dim:
        magnitude = block(magnitude, piece.hf_block._replace(dim=0))
    return merged * (magnitude.view_as(lengths) / lengths)
