"""Checkpoints of several ranks: each writes its parts, and any division reads them."""

import json
from pathlib import Path

import pytest
import torch

from setpoint.model.pretrained.fill import block, common
from setpoint.model.pretrained.weight_names import Part, Piece

from ..support.forks import forked


def test_parts_are_written_once_and_read_by_any_division() -> None:
    assert forked("tests.parallel.divided_checkpoints").split() == [
        "equal_in_any_other_division",
        "what_one_rank_cannot_save_all_hear_of",
        "the_reader_of_the_docs_reads_them",
    ]


PAIRS = (
    "fp32:replicated2:tensor2", "masters:expert2:tensor2", "adapter:expert2:one",
    "tied:interleaved2:one",
)  # fmt: skip
IN_PART = 2


def test_some_pairs_of_divisions() -> None:
    lines = forked("tests.parallel.resharding", *PAIRS)
    assert len(lines.splitlines()) == len(PAIRS) + IN_PART


@pytest.mark.slow
def test_all_pairs_of_divisions() -> None:
    lines = forked("tests.parallel.resharding").splitlines()
    assert len(lines) == 2 * 11**2 + 3**2 + 2 * 2**2 + IN_PART


def test_two_ranks() -> None:
    forked("tests.parallel.reading_ranks")


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


def test_ranks_fetch_their_share_and_go_on_exactly() -> None:
    assert forked("tests.parallel.remote_ranks").split() == ["equal"]


@pytest.mark.parametrize(
    ("ranks", "story", "kills"),
    [(2, "shard", 1), pytest.param(4, "shard, replicate", 4, marks=pytest.mark.slow)],
)
def test_killed_anywhere_it_equals_the_undisturbed_run(
    tmp_path: Path, ranks: int, story: str, kills: int
) -> None:
    words = map(str, (tmp_path, ranks, kills, story))
    printed = forked("tests.parallel.killed_ranks", *words).splitlines()[-1]
    found: dict[str, int] = json.loads(printed)
    assert sum(found.values()) >= kills
