"""The table of faults: each is tried as often as docs/reliability.md says, or more."""

from __future__ import annotations

from pathlib import Path

import pytest

from .reliability import FAULTS, PAGE, Fault, counts_in, with_table


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, counts_in(page)) == page, "run python -m tests.checkpoint.reliability"
    assert len(counts_in(page)) == len(FAULTS) and all(counts_in(page).values())


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.name}, {fault.ranks}")
def test_a_fault(fault: Fault, tmp_path: Path) -> None:
    stated = counts_in(PAGE.read_text(encoding="utf-8"))
    assert fault.cases(tmp_path) >= stated[fault.name, fault.ranks]
