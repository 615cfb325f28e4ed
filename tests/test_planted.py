"""The planted breaks of `make planted` are about the source as it is."""

from __future__ import annotations

from .planted import BREAKS, ROOT


def test_each_break_can_be_planted() -> None:
    stale: list[str] = []
    for one in BREAKS:
        path = ROOT / "src/setpoint" / one.file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        missing = [name for name in one.tests.split() if not (ROOT / "tests" / name).exists()]
        if text.count(one.old) != 1 or one.old == one.new or missing:
            stale.append(f"{one.file}: {one.old!r} {' '.join(missing)}")
    assert not stale, "\n".join(stale)
