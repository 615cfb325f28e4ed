"""Checkpoints of any division of the ranks are gone on from by any other."""

from __future__ import annotations

import pytest

from ..support.forks import forked


def test_some_pairs_of_divisions() -> None:
    lines = forked("tests.parallel.resharding", "replicated2", "pipeline2", "/", "one", "tensor2")
    assert len(lines.splitlines()) == 2 * 2 * 2 + 2


@pytest.mark.slow
def test_all_pairs_of_divisions() -> None:
    lines = forked("tests.parallel.resharding")
    assert len(lines.splitlines()) == 8 * 8 * 2 + 2
