"""A run that was recorded under an older schema goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from setpoint.config import fingerprint
from setpoint.config.composition import compose
from setpoint.config.migrations.chain import chain
from setpoint.config.record.record import read_record
from setpoint.model.config import Transformer
from setpoint.train.config import Job
from setpoint.train.run import train

from .small import small_job


def test_the_chain_is_whole() -> None:
    assert [each.schema for each in chain(Job)] == sorted(each.schema for each in chain(Job))


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
