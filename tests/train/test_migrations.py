"""A run that was recorded under an older schema goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from setpoint.config import fingerprint
from setpoint.config.composition import compose
from setpoint.config.migrations.chain import chain
from setpoint.config.migrations.operations import Added
from setpoint.config.record.record import read_record
from setpoint.model.config import Transformer
from setpoint.train.config import Job
from setpoint.train.run import Outcome, train

from .small import events, small_job


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A run of six steps whose record is made to look as schema 1 wrote it."""
    run = train(small_job(tmp_path, "duration=6 steps", "schedule=constant")).directory
    config = json.loads((run / "config.json").read_text())
    origins = json.loads((run / "origins.json").read_text())
    config["setpoint"]["schema"] = 1
    for path in [each.path for each in chain(Job) if isinstance(each, Added)]:
        section, _, name = path.rpartition(".")
        (config.get(section, {}) if section else config).pop(name, None)
        for key in [key for key in origins if key == path or key.startswith(f"{path}.")]:
            del origins[key]
    (run / "config.json").write_text(json.dumps(config))
    (run / "origins.json").write_text(json.dumps(origins))
    return run


def resume(run: Path, *flags: str) -> Outcome:
    draft, _ = read_record(Job, str(run))
    return train(compose(Job, draft, flags=flags).resolve(), run)


def test_the_chain_is_whole() -> None:
    assert [each.schema for each in chain(Job)] == sorted(each.schema for each in chain(Job))


def test_an_old_run_goes_on_and_keeps_its_old_record_beside(old_run: Path) -> None:
    before = {name: (old_run / name).read_bytes() for name in ("config.json", "origins.json")}
    outcome = resume(old_run, "duration=8 steps")
    assert (outcome.started.step, outcome.ended.step) == (6, 8)
    assert (old_run / "config.schema-1.json").read_bytes() == before["config.json"]
    assert (old_run / "origins.schema-1.json").read_bytes() == before["origins.json"]
    assert (old_run / "config.schema-1.toml").exists()
    config = json.loads((old_run / "config.json").read_text())
    assert (config["setpoint"]["schema"], config["silence"]) == (Job.__setpoint__.schema, [])
    (event,) = events(old_run, "resume")
    assert [item["path"] for item in event["accepted"]] == ["duration"]
    # The backup is that of the first time, and no further one is made.
    resume(old_run, "duration=9 steps")
    assert (old_run / "config.schema-1.json").read_bytes() == before["config.json"]
    assert not (old_run / "config.schema-2.json").exists()


def test_the_same_command_finds_the_directory_of_an_old_run(tmp_path: Path, old_run: Path) -> None:
    """Its name has the fingerprint, which the added field has left as it was."""
    again = train(small_job(tmp_path, "duration=7 steps", "schedule=constant"))
    assert again.directory == old_run
    assert again.started.step == 6


def test_migrations_are_imported_only_where_something_is_old(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from setpoint.cli.main import main\n"
        "assert main(['check', 'tiny']) == 0\n"
        "assert 'setpoint.train.migrations' not in sys.modules\n"
        "assert main(['check', 'tiny', '--optimizr.lr', '3']) == 2\n"
        "assert 'setpoint.train.migrations' in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_experts_of_an_old_run_keep_their_load_and_its_fingerprint(tmp_path: Path) -> None:
    """The load was counted over micro-batches, which the fingerprint did not say."""
    flags = ("model.moe={experts=4, expert_dim=8}", "duration=3 steps", "schedule=constant")
    null = small_job(tmp_path, *flags, "model.moe.load_sequences=null")
    run = train(null).directory
    for name in ("config.json", "origins.json"):
        record = json.loads((run / name).read_text())
        for path in ("model.moe.load_sequences", "memory.keep_freed"):
            record.pop(path, None)
        if name == "config.json":
            del record["model"]["moe"]["load_sequences"]
            del record["memory"]["keep_freed"]
            record["setpoint"]["schema"] = 5
        (run / name).write_text(json.dumps(record))
    draft, _ = read_record(Job, str(run))
    job = compose(Job, draft, flags=("duration=5 steps",)).resolve()
    assert fingerprint(job) == fingerprint(null) != fingerprint(small_job(tmp_path, *flags))
    assert isinstance(job.model, Transformer) and job.model.moe is not None
    assert job.model.moe.load_sequences is None
    assert train(job, run).ended.step == 5
