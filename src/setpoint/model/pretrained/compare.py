"""What a model needs held against what files hold, before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from setpoint.config import RunError
from setpoint.files.tensor_header import CODES, FLOATS, TensorInfo
from setpoint.model.pretrained.quantized import dense_tensors
from setpoint.model.pretrained.tensor_files import list_tensors
from setpoint.model.pretrained.weights import (
    Part,
    Piece,
    Shape,
    renamed,
    tensor_shapes,
    their_shapes,
)

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig
    from setpoint.model.pretrained.convert import Family

HEAD: Final = "lm_head.weight"
"""Name of the output matrix in transformers."""
ROWS: Final = ("embedding.weight", "output.weight")
"""The matrices with a row for each token."""
_SHOWN = 3


class Files(NamedTuple):
    """The tensors of a directory beside those of a model.

    Arguments:
        pieces: of which the model's are made.
        surplus: patterns of names that no piece has and that are passed over.
    """

    pieces: list[Piece]
    held: dict[str, TensorInfo]
    surplus: list[str]


def files_of(
    directory: Path, family: Family, config: TransformerConfig, rows: Mapping[str, int], tokens: int
) -> Files:
    """Find the tensors of a directory that make up a transformer.

    Arguments:
        rows, tokens: see `pieces_of`.

    Raises:
        SetpointError: see `dense_tensors`.
    """
    held = dense_tensors(directory)
    pieces = pieces_of(family, config, rows, tokens)
    if not any(name.startswith(family.base) for name in held):
        # As the class without a head saves them; so are those of the first GPT-2.
        pieces = renamed(pieces, lambda name: name.removeprefix(family.base))
    surplus = family.surplus_of(config)
    if config.tie_embeddings:
        surplus.append(re.escape(HEAD))
    return Files(pieces, held, surplus)


def pieces_of(
    family: Family, config: TransformerConfig, rows: Mapping[str, int], tokens: int
) -> list[Piece]:
    """How the tensors of a family and of a model are made of each other.

    Arguments:
        rows: of the matrices with a row for each token, by their names in the model.
        tokens: of the vocabulary, without rows of padding.
    """
    if all(count == tokens for count in rows.values()):
        return family.pieces(config)
    kept = Part(0, 0, tokens)
    return [
        piece._replace(of_ours=kept) if piece.ours in ROWS else piece
        for piece in family.pieces(config)
    ]


def require_files(directory: Path, family: Family, config: TransformerConfig) -> None:
    """Refuse files that are not those of the model in their config.json, by their headers.

    Arguments:
        config: of the config.json.

    Raises: as `files_of` and `require_tensors` do.
    """
    assert config.vocab_size is not None, "every config.json has it"
    require_depth(directory, config)
    shapes = tensor_shapes(config, config.vocab_size)
    rows = {name: shapes[name][0] for name in ROWS if name in shapes}
    pieces, held, surplus = files_of(directory, family, config, rows, config.vocab_size)
    require_tensors(directory, their_shapes(pieces, shapes), held, surplus)


def require_depth(directory: Path, config: TransformerConfig) -> None:
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


def require_tensors(
    where: object,
    wanted: Mapping[str, Shape],
    held: Mapping[str, TensorInfo],
    surplus: Iterable[str] = (),
    coded: Collection[str] = (),
) -> None:
    """Refuse files that lack tensors, or have others, or of other shapes.

    Arguments:
        coded: names of tensors that may hold whole numbers: parts of quantized weights.

    Raises:
        RunError: if anything differs, each kind with the first few names and their number.
    """
    patterns = [re.compile(pattern) for pattern in surplus]
    missing = [f"{name} {_sized(shape)}" for name, shape in wanted.items() if name not in held]
    beyond = [
        f"{name} {_sized(info.shape)}"
        for name, info in held.items()
        if name not in wanted and not any(pattern.fullmatch(name) for pattern in patterns)
    ]
    common = [name for name in wanted if name in held]
    shapes = [
        f"{name} {_sized(held[name].shape)}, the model's is {_sized(wanted[name])}"
        for name in common
        if held[name].shape != wanted[name]
    ]
    kinds = [
        f"{name} {held[name].dtype}"
        for name in common
        if held[name].dtype not in (*FLOATS, *(CODES if name in coded else ()))
    ]
    found = [
        _line(missing, "missing"),
        _line(beyond, "not in the model"),
        _line(shapes, "of another shape"),
        _line(kinds, f"of a type that weights cannot have ({', '.join(FLOATS)} can)"),
    ]
    if any(found):
        lines = "\n  ".join(filter(None, found))
        raise RunError(f"{where} does not fit the model, and nothing was loaded:\n  {lines}")


def _line(names: list[str], what: str) -> str:
    if not names:
        return ""
    more = f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    count = "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"
    return f"{count} {what}: {'; '.join(names[:_SHOWN])}{more}"


def _sized(shape: Shape) -> str:
    return f"({', '.join(str(size) for size in shape)})"
