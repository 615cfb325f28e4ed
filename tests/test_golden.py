"""No default of a preset, a modifier or a variant changes unseen: the alarm for drift."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import RUNTIME
from setpoint.config.composition import Composition, compose
from setpoint.config.schema.class_info import all_fields
from setpoint.optim.config import MuonConfig
from setpoint.resilience.config import GarbageCollection
from setpoint.train.config import Job

from . import goldens

SHOWN = 12


def message(changes: dict[str, list[str]]) -> str:
    """What a failure says: which values drifted, and what to do."""
    lines = [
        "the configuration that comes out is another one than before. If that is meant, run "
        "`make golden`, read its diff, and say in CHANGELOG.md what changes for whom; if a field "
        "is new or has gone, docs/config/migrate.md says what else is needed."
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


def test_a_changed_default_is_seen_where_no_preset_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    goldens.change_default(monkeypatch, MuonConfig, "steps", 6)
    assert goldens.all_drift() == {
        goldens.FIELDS: [
            "-optim.MuonConfig.steps = 5  # identity",
            "+optim.MuonConfig.steps = 6  # identity",
        ]
    }


def test_a_changed_role_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MuonConfig.__setpoint__.fields["steps"], "role", RUNTIME)
    assert goldens.all_drift()[goldens.FIELDS][1] == "+optim.MuonConfig.steps = 5  # runtime"


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (
            lambda job: setattr(job.checkpoint, "every", "7 steps"),
            ['+checkpoint.every = "7 steps"  # runtime'],
        ),
        # Sections whose values are all defaults, and one that is gone.
        (
            lambda job: setattr(job.resilience, "gc", GarbageCollection()),
            ["+resilience.gc: resilience.GarbageCollection"],
        ),
        (lambda job: setattr(job.tracking, "trackers", []), ["+tracking.trackers = []  # runtime"]),
    ],
)
def test_a_changed_preset_is_seen(
    change: Callable[[Job], None], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compose_changed(*arguments: Any, **options: Any) -> Composition[Job]:
        job = compose(*arguments, **options)
        change(job.draft)
        return job

    monkeypatch.setattr(goldens, "compose", compose_changed)
    assert goldens.drift("tiny.txt", goldens.resolved("tiny")) == lines


def test_rewriting_shows_the_diff_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(goldens, "FOLDER", tmp_path)
    monkeypatch.setattr(goldens, "goldens", functools.cache(goldens.goldens))
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
    names = [line.partition(" = ")[0] for line in lines]
    assert len(names) == len(set(names))
    assert {f"train.Job.{name}" for name in Job.__setpoint__.fields} <= set(names)
    paths = {
        f"{cls.__name__}.{name}" for cls in goldens.classes() for name in cls.__setpoint__.fields
    }
    assert {path.rpartition(".")[2] for path, _ in all_fields(Job)} <= {
        path.rpartition(".")[2] for path in paths
    }
    assert {"Text.paths", "Cosine.warmup", "LionConfig.betas"} <= paths
