"""Adapters in PEFT's format, folded into the weights that a model starts from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from setpoint.config import RunError, SetpointError
from setpoint.model.initialize import plain_name
from setpoint.model.pretrained.fill import block
from setpoint.model.pretrained.header import read_header
from setpoint.model.pretrained.peft_files import WEIGHTS, PeftFiles
from setpoint.model.pretrained.pieces import Piece
from setpoint.model.pretrained.read_tensor import Unread
from setpoint.model.pretrained.tensors import pieces_of
from setpoint.model.pretrained.write_config import family_for
from setpoint.shapes.placed import put, whole_of

if TYPE_CHECKING:
    from setpoint.model.config import Transformer

_BEFORE = "base_model.model."
_OWN = re.compile(
    r"(?P<module>.+)\.lora_(?P<what>A|B|embedding_A|embedding_B|magnitude_vector)(\.weight)?"
)


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


def read_adapter(files: PeftFiles) -> tuple[dict[str, _Adapter], dict[str, Tensor]]:
    """Read the adapters by their modules, and the tensors of modules that were trained whole.

    Raises:
        RunError: the files are damaged or do not belong together.
    """
    held = read_header(files.path / WEIGHTS)
    tensors = {name: Unread(info, [])[...] for name, info in held.items()}
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = name.removeprefix(_BEFORE)
        found = _OWN.fullmatch(own)
        if found is None:
            whole[own] = tensor
        else:
            parts[found["module"]][found["what"]] = tensor.float()
    return {module: _adapter(files, module, of) for module, of in parts.items()}, whole


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
def fold_adapters(config: Transformer, model: nn.Module, whole: nn.Module) -> list[dict[str, Any]]:
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
        for piece in pieces_of(family_for(config, None), whole, config):
            pieces[piece.theirs].append(piece)
    held = {plain_name(name): each for name, each in model.named_parameters()}
    facts: list[dict[str, Any]] = []
    for section in config.adapters:
        files = PeftFiles(section.path)
        adapters, tensors = read_adapter(files)
        known = {f"{module}.weight" for module in adapters} | tensors.keys()
        if strange := sorted(known - pieces.keys()):
            raise SetpointError(
                f"model.adapters: {section.path} belongs to another model: it changes "
                f"{strange[0]}, and this one has {', '.join([*pieces][:3])} and so on"
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
        for module, adapter in adapters.items():
            for piece in pieces[f"{module}.weight"]:
                _change(held, piece, partial(_merged, adapter, section.weight))
        for name, tensor in tensors.items():
            for piece in pieces[name]:
                _change(held, piece, partial(_taken, tensor))
        facts.append({"path": str(files.path), "weight": section.weight, "sha256": files.digest()})
    return facts


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
        magnitude = magnitude.narrow(0, piece.of_theirs.start, lengths.numel())
    return merged * (magnitude.view_as(lengths) / lengths)
