"""The planted breaks of `make planted` are about the source as it is."""

from pathlib import Path

from .planted import BREAKS, ROOT, copy_tree


def test_each_break_can_be_planted() -> None:
    stale: list[str] = []
    for one in BREAKS:
        path = ROOT / "src/setpoint" / one.file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        missing = [name for name in one.tests.split() if not (ROOT / "tests" / name).exists()]
        if text.count(one.old) != 1 or one.old == one.new or missing:
            stale.append(f"{one.file}: {one.old!r} {' '.join(missing)}")
    assert not stale, "\n".join(stale)


def test_the_copy_has_every_module(tmp_path: Path) -> None:
    """Such as the package `setpoint.runs`, which has the name of a folder that is left out."""
    for top in ("src", "runs"):
        (tmp_path / "root" / top / "package" / "runs").mkdir(parents=True)
        (tmp_path / "root" / top / "package" / "runs" / "index.py").touch()
    copy_tree(tmp_path / "root", tmp_path / "copy")
    found = [path.relative_to(tmp_path / "copy") for path in (tmp_path / "copy").rglob("*.py")]
    assert found == [Path("src/package/runs/index.py")]
