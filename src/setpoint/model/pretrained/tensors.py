"""Which tensors of a directory make up a transformer of ours."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from setpoint.config import RunError
from setpoint.files.tensor_header import FLOATS, TensorInfo
from setpoint.model.config import TransformerConfig
from setpoint.model.pretrained.compare import HEAD, ROWS, files_of
from setpoint.model.pretrained.convert import Family
from setpoint.model.pretrained.fill import Growth, Weights
from setpoint.model.pretrained.read_tensor import TensorReader

EMBEDDING = "embedding.weight"


def weights_of(
    directory: Path,
    family: Family,
    model: nn.Module,
    config: TransformerConfig,
    growth: Growth | None = None,
) -> Weights:
    """The weights of a directory, held against a model of ours.

    Arguments:
        growth: see `Weights`.

    Raises:
        SetpointError: if there are no weights that can be read.
        RunError: if they are damaged, or are not those of the model.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    pieces, held, surplus = files_of(directory, family, config, *rows_of(model))
    if config.tie_embeddings and HEAD in held:
        _require_tied(directory, held, pieces[0].theirs)
    return Weights(directory, pieces, held, shapes, surplus, growth=growth)


def rows_of(model: nn.Module) -> tuple[dict[str, int], int]:
    """What `pieces_of` is given of a model."""
    tokens: int = model.vocab_size  # pyright: ignore[reportAssignmentType]
    return {name: p.shape[0] for name, p in model.named_parameters() if name in ROWS}, tokens


def _require_tied(directory: Path, held: Mapping[str, TensorInfo], embedding: str) -> None:
    """An output matrix beside a tied embedding must be the embedding, or one of them is lost."""
    if embedding not in held or {held[embedding].dtype, held[HEAD].dtype} - {*FLOATS}:
        return  # which is reported with all else that is wrong
    with TensorReader() as reader:
        first = reader.read(held[embedding])
        if not torch.equal(first, reader.read(held[HEAD])):
            raise RunError(
                f"{directory} holds an {HEAD} that differs from {embedding}, while its config.json "
                f"says that they are one (tie_word_embeddings). Set that to false there if the "
                f"output matrix is one of its own. Nothing was loaded."
            )
