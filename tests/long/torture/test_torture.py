"""Runs that are disturbed in every way, and then compared with undisturbed ones, bit for bit.

`make torture` is the long form, which writes docs/reference/tested-faults.md; `campaign` says what
a campaign is.
"""

import json
from pathlib import Path

import pytest

from ...support.forks import forked
from .faults import FAULTS
from .table import CAMPAIGNS, PAGE, counts_in, with_table

SMALL = {
    ("fail, tracker", 1): "Disk,Memory,NotANumber,Second,Silent",
    ("rollback", 2): "Killed,Hangs",
}
"""Faults of the stories that `make test` tries."""


@pytest.mark.parametrize(
    ("story", "ranks"),
    [pytest.param(*each, marks=pytest.mark.slow) if each[1] > 1 else each for each in SMALL],
)
def test_a_disturbed_run_equals_the_undisturbed_one(tmp_path: Path, story: str, ranks: int) -> None:
    kinds = SMALL[story, ranks]
    words = (str(tmp_path), story, str(ranks), "1", kinds)
    found = json.loads(forked("tests.long.torture.campaign", *words).splitlines()[-1])
    assert found["faults"] == dict.fromkeys(kinds.split(","), 1)
    assert found["survived"] == len(found["faults"]) and found["compared"] >= 9


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    counts = counts_in(page)
    assert with_table(page, counts) == page, "run make torture"
    tried = {(fault.name, ranks) for fault in FAULTS for ranks in fault.sizes}
    assert {key for key, count in counts.items() if count} == tried
    assert {ranks for _, ranks, _ in CAMPAIGNS} == {1, 2}
