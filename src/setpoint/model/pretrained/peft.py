"""Adapters in PEFT's format, folded into the weights that a model starts from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.config import RunError, SetpointError
from setpoint.files.tensor_header import read_header
from setpoint.model.initialize import plain_name
from setpoint.model.pretrained.config_json import family_for
from setpoint.model.pretrained.fill import EMBEDDING, block, rows_of
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
from setpoint.model.pretrained.read_tensor import Unread
from setpoint.model.pretrained.weights import HEAD, Piece, pieces_of
from setpoint.shapes.placed import put, whole_of

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig


class _Adapter(NamedTuple):
    """An adapter of one matrix of theirs: B A times a scale, in the form (outputs, inputs).

    Arguments:
        turned: whether theirs is (inputs, outputs).
        magnitude: lengths of the rows of the merged weight (DoRA).
    """

    a: Tensor
    b: Tensor
    scale: float
    magnitude: Tensor | None
    turned: bool
    is_embedding: bool


class _Read(NamedTuple):
    """The tensors of an adapter.

    Arguments:
        adapters: by module.
        whole: of modules that were trained whole, by name.
        base: matrices of the base, which PEFT writes beside adapters of embeddings.
    """

    adapters: dict[str, _Adapter]
    whole: dict[str, Tensor]
    base: dict[str, Tensor]


def read_adapter(files: PeftFiles) -> _Read:
    """Read the tensors of an adapter.

    Raises:
        RunError: the files are damaged or do not belong together.
    """
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    whole: dict[str, Tensor] = {}
    base: dict[str, Tensor] = {}
    for name, info in read_header(files.path / WEIGHTS).items():
        tensor, own = Unread(info, [])[...], name.removeprefix(BEFORE)
        match = LOW_RANK.fullmatch(own)
        if match is not None:
            parts[match["module"]][match["what"]] = tensor.float()
        elif BASE in own:
            base[own.replace(BASE, "")] = tensor
        else:
            whole[own] = tensor
    adapters = {module: _adapter(files, module, of) for module, of in parts.items()}
    return _Read(adapters, whole, base)


def _adapter(files: PeftFiles, module: str, of: Mapping[str, Tensor]) -> _Adapter:
    is_embedding = "embedding_A" in of
    before = "embedding_" if is_embedding else ""
    if f"{before}A" not in of or f"{before}B" not in of:
        raise RunError(f"{files.path / WEIGHTS}: {module} has only one of A and B")
    a, b = of[f"{before}A"], of[f"{before}B"]
    rank = a.shape[0]
    if a.ndim != 2 or b.ndim != 2 or b.shape[1] != rank:
        raise RunError(
            f"{files.path / WEIGHTS}: {module} has A {tuple(a.shape)} and B {tuple(b.shape)}"
        )
    scale = files.scale_of(module, rank)
    turned = bool(files.keys.get("fan_in_fan_out")) and not is_embedding
    return _Adapter(a, b, scale, of.get("magnitude_vector"), turned, is_embedding)


@torch.no_grad()
def fold_adapters(
    config: TransformerConfig, model: nn.Module, whole: nn.Module
) -> list[dict[str, Any]]:
    """Fold the adapters of a section into the weights of a model; every rank calls it.

    Arguments:
        model: filled; ranks may hold parts of it.
        whole: the model that it is a part of, without values.

    Returns:
        what the record says of each.

    Raises:
        SetpointError: one is not there, or belongs to another model. Nothing is to be trained then.
    """
    pieces: dict[str, list[Piece]] = defaultdict(list)
    if config.adapters:
        for piece in pieces_of(family_for(config, None), config, *rows_of(whole)):
            pieces[piece.theirs].append(piece)
    held = {plain_name(name): each for name, each in model.named_parameters()}
    read = [(PeftFiles(section.path), section) for section in config.adapters]
    contents = [(section, files, read_adapter(files)) for files, section in read]
    for _, _, content in contents:
        # The base as it is filled now; another one, with more tokens perhaps, is a saved matrix.
        for name, tensor in content.base.items():
            tied = config.tie_embeddings and name == HEAD
            current = pieces[_embedding_of(pieces) if tied else name]
            if not all(_is_filled(held, piece, tensor) for piece in current):
                content.whole[name] = tensor
    facts: list[dict[str, Any]] = []
    saved: dict[str, str] = {}
    for section, files, (adapters, tensors, _) in contents:
        if config.tie_embeddings:
            _tie(held, pieces, section.path, adapters, tensors)
        known = {f"{module}.weight" for module in adapters} | tensors.keys()
        if strange := sorted(known - pieces.keys()):
            raise SetpointError(
                f"model.adapters: {section.path} belongs to another model: it changes "
                f"{strange[0]}, and this one has {', '.join([*pieces][:3])} and so on"
            )
        for name in tensors:
            if saved.setdefault(name, section.path) is not section.path:
                raise SetpointError(
                    f"model.adapters: {section.path} {saves_again(name, saved[name])}"
                )
        if tensors and section.weight != 1:
            raise SetpointError(
                f"model.adapters: {section.path} has modules that were trained whole, such as "
                f"{min(tensors)}, which cannot be weighed with {section.weight:g}\n"
                f"Valid: weight = 1"
            )
        lengths = [module for module, each in adapters.items() if each.magnitude is not None]
        if lengths and section.weight != 1:
            raise SetpointError(
                f"model.adapters: {section.path} has magnitudes (DoRA), which cannot be weighed "
                f"with {section.weight:g}\nValid: weight = 1"
            )
        for name, tensor in tensors.items():
            for piece in pieces[name]:
                _change(held, piece, partial(_taken, tensor))
        for module, adapter in adapters.items():
            for piece in pieces[f"{module}.weight"]:
                _change(held, piece, partial(_merged, adapter, section.weight))
        facts.append({"path": str(files.path), "weight": section.weight, "sha256": files.digest()})
    return facts


def _is_filled(held: Mapping[str, Tensor], piece: Piece, tensor: Tensor) -> bool:
    """Whether a parameter equals a tensor; those of other pipeline stages are not compared."""
    if piece.ours not in held:
        return True
    ours = block(whole_of(held[piece.ours]), piece.of_ours)
    theirs = block(tensor, piece.of_theirs).to(ours)
    return torch.equal(ours.T if piece.transposed else ours, theirs)


def _embedding_of(pieces: Mapping[str, list[Piece]]) -> str:
    """Name of the embedding in transformers."""
    return next(name for name, of in pieces.items() if any(p.ours == EMBEDDING for p in of))


def _tie(
    held: Mapping[str, Tensor],
    pieces: Mapping[str, list[Piece]],
    path: str,
    adapters: dict[str, _Adapter],
    tensors: dict[str, Tensor],
) -> None:
    """Leave one change of a tied matrix where embedding and output matrix are changed alike.

    Raises:
        SetpointError: they are not, as PEFT unties them.
    """
    embedding = _embedding_of(pieces)
    names = [n for n in (embedding, HEAD) if n in tensors or n.removesuffix(".weight") in adapters]
    if names and EMBEDDING in held:
        filled = block(whole_of(held[EMBEDDING]), pieces[embedding][0].of_ours)
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
                else f"model.adapters: {path} changes {module} and {HEAD} differently, and here "
                "both are one matrix\nValid: weights with model.tie_embeddings = false"
            )
    tensors.pop(HEAD, None)
    adapters.pop(HEAD.removesuffix(".weight"), None)


def _change(
    held: Mapping[str, Tensor], piece: Piece, change: Callable[[Tensor, Piece], Tensor]
) -> None:
    """Replace a block of a parameter by what a function makes of theirs."""
    if piece.ours not in held:
        return  # another stage of a pipeline has it
    parameter = held[piece.ours]
    full = whole_of(parameter).clone()
    ours = block(full, piece.of_ours)
    theirs = ours.T if piece.transposed else ours
    found = change(theirs.float(), piece)
    if found.shape != theirs.shape:
        raise SetpointError(
            f"model.adapters: {piece.theirs} is {tuple(theirs.shape)} here, and "
            f"{tuple(found.shape)} in the adapter"
        )
    ours.copy_(found.T if piece.transposed else found)
    put(parameter, full)


def _taken(tensor: Tensor, weight: Tensor, piece: Piece) -> Tensor:
    """A block of theirs in place of ours."""
    del weight
    return block(tensor, piece.of_theirs)


def _merged(adapter: _Adapter, share: float, weight: Tensor, piece: Piece) -> Tensor:
    """A block of theirs with the update, as PEFT merges it."""
    if adapter.is_embedding:
        update, dim = (adapter.b @ adapter.a).T, 0
    else:
        product = adapter.b @ adapter.a
        update, dim = (product.T, 0) if adapter.turned else (product, 1)
    update = block(update, piece.of_theirs) * (adapter.scale * share)
    if update.shape != weight.shape:
        return update
    merged = weight + update
    if adapter.magnitude is None:
        return merged
    lengths = torch.linalg.vector_norm(merged, dim=dim, keepdim=True)
    magnitude = adapter.magnitude.float().flatten()
    if piece.of_theirs is not None and piece.of_theirs.dim != dim:
        magnitude = block(magnitude, piece.of_theirs._replace(dim=0))
    return merged * (magnitude.view_as(lengths) / lengths)
