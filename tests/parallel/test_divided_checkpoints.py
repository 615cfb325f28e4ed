"""Checkpoints of several ranks: each writes its parts, and any division reads them."""

from __future__ import annotations

from ..support.forks import forked


def test_parts_are_written_once_and_read_by_any_division() -> None:
    assert forked("tests.parallel.divided_checkpoints").split() == [
        "equal_in_any_other_division",
        "a_full_disk_on_one_rank_saves_nothing",
        "what_one_rank_cannot_save_all_hear_of",
        "a_flipped_bit_is_seen_by_all",
        "the_reader_of_the_docs_reads_them",
    ]
