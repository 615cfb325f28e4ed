"""Which tensors of a directory make up a transformer of ours."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from setpoint.config import RunError
from setpoint.model.config import Transformer
from setpoint.model.pretrained.family import Family
from setpoint.model.pretrained.fill import ROWS, Growth, Weights
from setpoint.model.pretrained.header import TensorInfo
from setpoint.model.pretrained.pieces import Part, Piece, renamed
from setpoint.model.pretrained.quantized import dense_tensors
from setpoint.model.pretrained.read_tensor import DTYPES, TensorReader
from setpoint.model.pretrained.tensor_files import list_tensors

EMBEDDING = "embedding.weight"
HEAD = "lm_head.weight"
"""Name of the output matrix in transformers."""


def weights_of(
    directory: Path,
    family: Family,
    model: nn.Module,
    config: Transformer,
    growth: Growth | None = None,
) -> Weights:
    """The weights of a directory, held against a model of ours.

    Arguments:
        growth: see `Weights`.

    Raises:
        SetpointError: if there are no weights that can be read.
        RunError: if they are damaged, or are not those of the model.
    """
    held = dense_tensors(directory)
    pieces = pieces_of(family, model, config)
    if not any(name.startswith(family.base) for name in held):
        # As the class without a head saves them; so are those of the first GPT-2.
        pieces = renamed(pieces, lambda name: name.removeprefix(family.base))
    surplus = [f"({re.escape(family.base)})?{pattern}" for pattern in family.surplus]
    if config.tie_embeddings and HEAD in held:
        _require_tied(directory, held, pieces[0].theirs)
        surplus.append(HEAD)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return Weights(directory, pieces, held, shapes, surplus, growth=growth)


def require_depth(directory: Path, config: Transformer) -> None:
    """Refuse a depth that files cannot have, before a model of it is built.

    Raises:
        RunError: there are more layers than tensors.
    """
    count = len(list_tensors(directory))
    if config.layers > count:
        raise RunError(
            f"{directory}: config.json says {config.layers} layers, and the files hold {count} "
            f"tensors in all. Nothing was loaded."
        )


def pieces_of(family: Family, model: nn.Module, config: Transformer) -> list[Piece]:
    """How the tensors of a family and of a model are made of each other."""
    tokens: int = model.vocab_size  # pyright: ignore[reportAssignmentType]
    rows = {name: each.shape[0] for name, each in model.named_parameters() if name in ROWS}
    if all(count == tokens for count in rows.values()):
        return family.pieces(config)
    kept = Part(0, 0, tokens)
    return [
        piece._replace(of_ours=kept) if piece.ours in ROWS else piece
        for piece in family.pieces(config)
    ]


def _require_tied(directory: Path, held: Mapping[str, TensorInfo], embedding: str) -> None:
    """An output matrix beside a tied embedding must be the embedding, or one of them is lost."""
    if embedding not in held or {held[embedding].dtype, held[HEAD].dtype} - DTYPES.keys():
        return  # which is reported with all else that is wrong
    with TensorReader() as reader:
        first = reader.read(held[embedding])
        if not torch.equal(first, reader.read(held[HEAD])):
            raise RunError(
                f"{directory} holds an {HEAD} that differs from {embedding}, while its config.json "
                f"says that they are one (tie_word_embeddings). Set that to false there if the "
                f"output matrix is one of its own. Nothing was loaded."
            )
