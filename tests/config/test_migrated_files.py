"""Files that say that they are of an older schema."""

from pathlib import Path

import pytest

from setpoint.config import ConfigError, SetpointError
from setpoint.config.composition import compose

from .history import Job

TEXT = """\
setpoint = {schema = 1}
hours = 2

[optim]
lr = 0.5
warm = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_read_as_one_of_today_and_says_what_has_changed(folder: Path) -> None:
    (folder / "old.toml").write_text(TEXT)
    composition = compose(Job, "old.toml")
    job = composition.resolve()
    assert (job.optimizer.lr, job.optimizer.warmup_tokens, job.minutes) == (0.5, 3000, 120)
    assert composition.notes == [
        "old.toml (schema 1): optimizer.fused is new in schema 2: the default is the fused kernel",
        "old.toml (schema 1): minutes: 2 is 120 since schema 3: counts minutes, not hours",
        "old.toml (schema 1): optimizer.warmup_tokens: 3 is 3000 since schema 3: counts tokens, "
        "not steps",
    ]


def test_errors_and_origins_name_the_line_of_the_old_key(folder: Path) -> None:
    (folder / "old.toml").write_text(TEXT.replace("0.5", '"fast"'))
    with pytest.raises(ConfigError) as caught:
        compose(Job, "old.toml").resolve()
    (problem,) = caught.value.problems
    assert (problem.path, problem.origin) == ("optimizer.lr", "old.toml:5:1")


def test_one_of_today_is_read_as_it_is(folder: Path) -> None:
    (folder / "new.yaml").write_text("setpoint: {schema: 3}\noptimizer: {lr: 0.5}\n")
    composition = compose(Job, "new.yaml")
    assert (composition.resolve().optimizer.lr, composition.notes) == (0.5, [])


def test_numbers_of_yaml_are_numbers(folder: Path) -> None:
    (folder / "old.yaml").write_text("setpoint: {schema: 2}\noptimizer:\n  warm: 3\nhours: 1\n")
    job = compose(Job, "old.yaml").resolve()
    assert (job.optimizer.warmup_tokens, job.minutes) == (3000, 60)


def test_what_a_file_extends_may_be_older_than_the_file(folder: Path) -> None:
    (folder / "old.toml").write_text(TEXT)
    (folder / "new.toml").write_text('extends = "old.toml"\n[optimizer]\nlr = 0.25\n')
    composition = compose(Job, "new.toml")
    job = composition.resolve()
    assert (job.optimizer.lr, job.minutes, len(composition.notes)) == (0.25, 120, 3)


def test_one_of_a_newer_schema_is_refused(folder: Path) -> None:
    (folder / "new.toml").write_text("setpoint = {schema = 4}\n")
    with pytest.raises(SetpointError, match=r"new\.toml: written by schema 4, this Setpoint reads"):
        compose(Job, "new.toml")


def test_a_fragment_of_an_older_schema(folder: Path) -> None:
    (folder / "slow.toml").write_text("setpoint = {schema = 2}\nwarm = 3\nlr = 0.5\n")
    composition = compose(Job, flags=["--optimizer.extends", "slow.toml"])
    assert composition.resolve().optimizer.warmup_tokens == 3000
    assert composition.notes == [
        "slow.toml (schema 2): optimizer.warmup_tokens: 3 is 3000 since schema 3: counts tokens, "
        "not steps"
    ]
