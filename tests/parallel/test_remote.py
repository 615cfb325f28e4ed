"""Several ranks fetch a run from a URL together."""

from __future__ import annotations

from ..support.forks import forked


def test_ranks_fetch_their_share_and_go_on_exactly() -> None:
    assert forked("tests.parallel.remote_ranks").split() == ["equal"]
