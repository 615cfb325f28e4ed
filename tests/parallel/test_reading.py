"""Who reads the weights that ranks start from, and how much of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from setpoint.model.pretrained.fill import block, common
from setpoint.model.pretrained.weights import Part, Piece


def test_two_ranks(run_module: Callable[[str], None]) -> None:
    run_module("tests.parallel.reading_ranks")


@pytest.mark.parametrize(
    ("piece", "theirs"),
    [
        (Piece("a", "b"), (6, 8)),
        (Piece("a", "b", transposed=True), (8, 6)),
        (Piece("a", "b", block=Part(0, 1, 4)), (4, 8)),
        (Piece("a", "b", block=Part(1, 2, 5), transposed=True), (5, 6)),
        (Piece("a", "b", hf_block=Part(0, 3, 6)), (9, 8)),
        (Piece("a", "b", hf_block=Part(1, 2, 6), transposed=True), (8, 8)),
        (Piece("a", "b", block=Part(0, 2)), (8,)),
    ],
)
@pytest.mark.parametrize(
    "box", [((0, 6), (0, 8)), ((2, 4), (0, 8)), ((4, 6), (3, 5)), ((0, 2), (6, 8))]
)
def test_a_part_of_a_piece_is_the_piece_cut(
    piece: Piece, theirs: tuple[int, ...], box: tuple[tuple[int, int], ...]
) -> None:
    source = torch.arange(1.0, 1 + torch.Size(theirs).numel()).view(theirs)
    whole = torch.zeros(6, 8)
    taken = block(source, piece.hf_block)
    block(whole, piece.block).copy_(taken.T if piece.transposed else taken)
    (top, bottom), (left, right) = box
    part = torch.zeros(bottom - top, right - left)
    if found := common(piece, (6, 8), box):
        within, ranges = found
        cut = source[tuple(slice(*each) for each in ranges)]
        part[within] = cut.T if piece.transposed else cut
    assert torch.equal(part, whole[top:bottom, left:right])
