"""What an old key is answered with, wherever it is used."""

from collections.abc import Callable
from pathlib import Path

import pytest

from setpoint.config import ConfigError, SetpointError
from setpoint.config.composition import compose
from setpoint.config.migrations import oldest_schema, retired_hint

from ..support.snapshots import compare
from .history import FIRST, Job, Sgd, Source

FILE = """\
fp16 = true
hours = 2
eval_every = 5

[optim]
lr = 1

[train]
batch = 3

[[sources]]
w = 2
"""


def message(action: Callable[[], object]) -> str:
    with pytest.raises((SetpointError, AttributeError)) as caught:
        action()
    return str(caught.value)


def test_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.toml").write_text(FILE)
    compare("config/tombstones_file", message(lambda: compose(Job, "exp.toml").resolve()))


def test_in_a_flag_and_in_a_variable() -> None:
    flags = ["--optim.lr=1", "--optim.wd=1", "--train.batch=3", "--train.log_every=4",
             "--fp16=true", "--hours=3", "--sources=[{}]", "--sources.0.w=3", "--optimizer.warm=3",
             "--optimizer.lr=${optim.lr}"]  # fmt: skip
    environ = {"SETPOINT__EVAL_EVERY": "3"}
    compare(
        "config/tombstones_flags",
        message(lambda: compose(Job, flags=flags, environ=environ).resolve()),
    )


def test_in_python() -> None:
    job = Job()
    actions: list[Callable[[], object]] = [
        lambda: setattr(job, "optim", 3),
        lambda: setattr(job.optimizer, "warm", 3),
        lambda: job.fp16,  # type: ignore[attr-defined]
        lambda: Job(hours=3),  # type: ignore[call-arg]
        lambda: Source(w=3),  # type: ignore[call-arg]
        lambda: Sgd(wd=3),  # type: ignore[call-arg]
    ]
    text = "\n\n".join(message(action) for action in actions)
    lines = [line for line in text.splitlines() if not line.startswith("    from program")]
    compare("config/tombstones_python", "\n".join(lines))


def test_a_switch_without_a_value() -> None:
    for flag, words in (
        ("--fp16", "fp16 was retired in schema 2: it did nothing; use precision.compute."),
        ("--optim.fused", "optim was renamed to optimizer in schema 2; write optimizer.fused."),
    ):
        assert message(lambda flag=flag: compose(Job, flags=[flag])) == f"{flag}: {words}"


def test_a_key_that_no_schema_had_gets_the_usual_answer() -> None:
    assert retired_hint(Job, "optimiser") == ""
    with pytest.raises(ConfigError, match=r"Did you mean optimizer\.lr\?"):
        compose(Job, flags=["--optimiser.lr=1"]).resolve()


def test_a_key_that_moved_twice_is_answered_with_todays_place() -> None:
    assert retired_hint(Job, "optim.warm").endswith("write optimizer.warmup_tokens.")
    assert retired_hint(Job, "train.log_every").endswith("write tracking.every.")


def test_the_schema_of_a_file_that_does_not_say_it() -> None:
    assert oldest_schema(Job, FIRST) == 1
    assert oldest_schema(Job, {"optimizer": {"warm": 3}}) == 2
    assert oldest_schema(Job, {"optimizer": {"lr": 3}, "minutes": 3}) is None
