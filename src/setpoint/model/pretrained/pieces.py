"""How the tensors of another format and ours are made of each other, piece by piece.

A piece is a block of a tensor of ours that equals a block of a tensor of theirs, perhaps
transposed. A list of pieces says all there is to say in both directions: what must be in a file
and of which shape, how to fill a parameter, and how to make up a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

Shape = tuple[int, ...]


class Part(NamedTuple):
    """A range of one dimension of a tensor.

    Arguments:
        length: how many; None for one index, without the dimension.
    """

    dim: int
    start: int
    length: int | None = None


class Piece(NamedTuple):
    """A block of ours and the equal block of theirs."""

    ours: str
    theirs: str
    of_ours: Part | None = None
    of_theirs: Part | None = None
    transposed: bool = False


def block_shape(shape: Shape, part: Part | None) -> Shape:
    """The shape of a block."""
    if part is None:
        return shape
    size = () if part.length is None else (part.length,)
    return (*shape[: part.dim], *size, *shape[part.dim + 1 :])


def their_shapes(pieces: Iterable[Piece], ours: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shapes that tensors of theirs must have."""
    found: dict[str, Shape] = {}
    for piece in pieces:
        block = block_shape(ours[piece.ours], piece.of_ours)
        block = block[::-1] if piece.transposed else block
        part = piece.of_theirs
        if part is not None:
            # A tensor of theirs that is made of several reaches to the end of the last.
            assert part.length is not None
            end = max(part.start + part.length, found.get(piece.theirs, (0,) * 9)[part.dim])
            block = (*block[: part.dim], end, *block[part.dim + 1 :])
        found[piece.theirs] = block
    return found


def renamed(pieces: Iterable[Piece], rename: Callable[[str], str]) -> list[Piece]:
    """The same pieces with other names on their side."""
    return [piece._replace(theirs=rename(piece.theirs)) for piece in pieces]


def stacked(ours: str, theirs: Sequence[tuple[str, int]]) -> list[Piece]:
    """A tensor of ours that is theirs put behind one another, along the first dimension."""
    pieces: list[Piece] = []
    start = 0
    for name, length in theirs:
        pieces.append(Piece(ours, name, of_ours=Part(0, start, length)))
        start += length
    return pieces
