"""No default of a preset, a modifier or a variant changes unseen: the alarm for drift."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.optim.config import AdamW
from setpoint.train.config import Job

from . import goldens

SHOWN = 12


def message(changes: dict[str, list[str]]) -> str:
    """What a failure says: which values drifted, and what to do."""
    lines = [
        "the configuration that comes out is another one than before. If that is meant, run "
        "`make golden`, read its diff, and say in CHANGELOG.md what changes for whom; if a field "
        "is new or has gone, docs/config/migrate.md says what else is needed.",
    ]
    for name, found in changes.items():
        lines.append(f"tests/golden/{name}")
        lines += [f"  {line}" for line in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"  ... and {len(found) - SHOWN} more")
    return "\n".join(lines)


def test_nothing_has_drifted() -> None:
    changes = goldens.all_drift()
    assert not changes, message(changes)


def test_every_preset_has_its_fingerprint() -> None:
    texts = goldens.goldens()
    assert "tiny.txt" in texts
    assert "tiny+smoke.txt" in texts
    for name in texts.keys() - {goldens.FIELDS}:
        assert (goldens.FOLDER / name).read_text().startswith("fingerprint "), name


def test_a_changed_default_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AdamW.__setpoint__.fields["eps"], "default", 2.0)
    changes = goldens.all_drift()
    text = message(changes)
    assert "make golden" in text
    assert "-optimizer.eps = 1e-08  # identity" in text
    assert "+optimizer.eps = 2.0  # identity" in text
    assert {"tiny.txt", goldens.FIELDS} <= changes.keys()


def test_rewriting_shows_the_diff_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(goldens, "FOLDER", tmp_path)
    (tmp_path / "old-preset.txt").write_text("x = 1\n")
    assert goldens.main() == 0
    shown = capsys.readouterr().out
    assert "tests/golden/old-preset.txt\n  -x = 1" in shown
    assert "tests/golden/tiny.txt\n  +fingerprint " in shown
    assert not (tmp_path / "old-preset.txt").exists()
    assert goldens.main() == 0
    assert capsys.readouterr().out == "nothing has changed\n"


def test_the_fields_are_those_of_every_variant() -> None:
    lines = (goldens.FOLDER / goldens.FIELDS).read_text().splitlines()
    paths = {line.partition(" = ")[0] for line in lines}
    assert set(Job.__setpoint__.fields) <= paths
    assert {"data.sources.paths", "schedule.warmup_steps", "optimizer.betas"} <= paths
