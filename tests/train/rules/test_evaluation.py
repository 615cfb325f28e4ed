"""Cautions about patience that is longer than the run, and about evaluations."""

from pathlib import Path

import pytest

from setpoint.config import ConfigError, resolve
from setpoint.config.record.record import fingerprint
from setpoint.config.resolving.checks import cautions_of, verify
from setpoint.train.config import Job
from setpoint.train.run import train

from ...support.snapshots import refused
from ..small import small_job, train_rows

STOP = "evaluation.early_stopping.patience"
PATIENCE, PLATEAU = "patience-beyond-run", "plateau-beyond-run"


def said(job: Job, code: str) -> str | None:
    """The message of a caution; None if there is none."""
    return next((each.message for each in cautions_of(job) if each.code == code), None)


@pytest.mark.parametrize(
    ("flags", "evaluations"),
    [
        (("duration=29 steps",), 9),
        (("evaluation.before_training=true",), 10),
        (("evaluation.every=130 tokens", "duration=10 steps"), 4),
        (("evaluation.every=400 steps",), 0),
    ],
)
def test_how_many_evaluations_count(
    tmp_path: Path, flags: tuple[str, ...], evaluations: int
) -> None:
    """The first one is the best so far, so that patience needs one more."""
    if evaluations > 1:
        enough = small_job(tmp_path, *flags, f"{STOP}={evaluations - 1}")
        assert said(enough, PATIENCE) is None
    beyond = small_job(tmp_path, *flags, f"{STOP}={max(evaluations, 1)}")
    assert str(said(beyond, PATIENCE)).endswith(f"only {evaluations} before its last step")


def test_a_run_does_count_so_many(tmp_path: Path) -> None:
    still = ("optimizer.lr=1e-30", "duration=10 steps", "evaluation.every=130 tokens", "name=q")
    assert train(small_job(tmp_path, *still, f"{STOP}=3")).reason is not None
    assert train(small_job(tmp_path / "b", *still, f"{STOP}=4")).reason is None


@pytest.mark.parametrize(
    "flags",
    [
        ("duration=1 epochs", "schedule=constant", f"{STOP}=99"),
        ("evaluation.every=10 min", f"{STOP}=99"),
        (),
    ],
)
def test_patience_where_evaluations_cannot_be_counted(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    assert said(small_job(tmp_path, *flags), PATIENCE) is None


FOLLOWS = ("schedule=plateau", "duration=30 steps", "evaluation.every=3 steps")


@pytest.mark.parametrize(("duration", "before_the_end"), [("30", 9), ("31", 10)])
def test_how_many_evaluations_a_plateau_sees_in_time(
    tmp_path: Path, duration: str, before_the_end: int
) -> None:
    flags = (f"duration={duration} steps",)
    patience = before_the_end - 2
    enough = small_job(tmp_path, *FOLLOWS, *flags, f"schedule.patience={patience}")
    assert said(enough, PLATEAU) is None
    beyond = small_job(tmp_path, *FOLLOWS, *flags, f"schedule.patience={patience + 1}")
    assert f"only {before_the_end} before its last step" in str(said(beyond, PLATEAU))


def test_a_run_lowers_the_rate_just_in_time(tmp_path: Path) -> None:
    """At a rate at which nothing is learnt, so that no evaluation after the first is a gain."""
    still = (*FOLLOWS, "optimizer.lr=1e-30")
    for patience, fallen in ((7, True), (8, False)):
        job = small_job(tmp_path / str(patience), *still, f"schedule.patience={patience}")
        rates = [row["lr"] for row in train_rows(train(job).directory)]
        assert set(rates[:-3]) == {1e-30} and (rates[-1] < 1e-30) is fallen


WEB = "evaluation.datasets=[{name: web.1, sources: [{type: random}]}]"


@pytest.mark.parametrize(
    "flags",
    [
        ("evaluation=null",),
        ("schedule.monitor=web.loss",),
        ("schedule.monitor=held_out.los",),
        ("schedule.monitor=held_out.accuracy",),
        ("schedule.monitor=held_out.accuracy", "evaluation.every=last_step"),
        ("schedule.monitor=web.loss", WEB, "evaluation.accuracy=true"),
    ],
    ids=lambda flags: " ".join(flag for flag in flags if flag != WEB),
)
def test_a_metric_that_is_not_computed(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with refused(ConfigError):
        small_job(tmp_path, "schedule=plateau", *flags)
    small_job(tmp_path, "schedule=plateau", WEB, "schedule.monitor=web.1.perplexity")


MORE = "evaluation.datasets=[{name: web, sources: [{type: random, documents: %s}], sequences: %s}]"
ON_WEB = ("schedule=plateau", "schedule.monitor=web.loss")


@pytest.mark.parametrize(
    ("flags", "change", "words"),
    [
        (("schedule=plateau",), "evaluation.every=5 steps", "held_out every 5 steps, the first 12"),
        (("schedule=plateau",), "evaluation.sequences=null", "every 3 steps, all sequences"),
        (("schedule=plateau",), "evaluation.before_training=true", "3 steps and before training"),
        ((*ON_WEB, MORE % (9, 4)), MORE % (8, 4), "web every 3 steps, the first 4 sequences of [{"),
        ((*ON_WEB, MORE % (9, 4)), MORE % (9, "null"), "all sequences of"),
    ],
)
def test_what_moves_a_plateau_is_learned(
    tmp_path: Path, flags: tuple[str, ...], change: str, words: str
) -> None:
    one, other = small_job(tmp_path, *flags), small_job(tmp_path, *flags, change)
    assert fingerprint(one) != fingerprint(other)
    assert words in str(other.plateau_basis()) and other.plateau_basis() != one.plateau_basis()


@pytest.mark.parametrize(
    ("flags", "change"),
    [
        # Of evaluations, only those of the data set that is looked at, and no more than that.
        (("schedule=plateau",), MORE % (9, 4)),
        ((*ON_WEB, MORE % (9, 4)), "evaluation.sequences=3"),
        ((), "evaluation.every=5 steps"),
    ],
)
def test_other_evaluations_are_not(tmp_path: Path, flags: tuple[str, ...], change: str) -> None:
    one, other = small_job(tmp_path, *flags), small_job(tmp_path, *flags, change)
    assert fingerprint(one) == fingerprint(other)
    assert one.plateau_basis() == other.plateau_basis()


def test_what_moves_a_plateau_is_not_given(tmp_path: Path) -> None:
    with refused(ConfigError):
        small_job(tmp_path, "schedule=plateau", "schedule.evaluated_on=x")
    whole = small_job(tmp_path, "schedule=plateau")
    again = small_job(
        tmp_path, "schedule=plateau", f"schedule.evaluated_on={whole.plateau_basis()}"
    )
    assert fingerprint(again) == fingerprint(whole)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), None),
        # 40 documents of 200 bytes, a fifth held out; 4 sequences of 16 tokens an update
        (("evaluation.sequences=null", "evaluation.every=1 steps"), "up to 1.60k tokens"),
        (("evaluation.sequences=90", "evaluation.every=1 steps"), "up to 1.44k tokens, and 64 "),
        (("evaluation.sequences=90", "evaluation.every=64 tokens"), "takes 7.5 times as long"),
        (("evaluation.sequences=90", "evaluation.every=1 min"), None),
        # How long a number of documents are is not known.
        (("evaluation.sequences=null", "evaluation.every=1 steps", "data.held_out=30"), None),
        (("evaluation.sequences=90", "evaluation.every=1 steps", "data.held_out=30"), "1.44k"),
        # 30 documents in a row each, of 16 tokens
        (
            (
                "evaluation.sequences=90",
                "evaluation.every=1 steps",
                "data.held_out=30",
                "data.packing.method=none",
                "data.packing.too_long=truncate",
            ),
            "up to 480 tokens",
        ),
    ],
)
def test_an_evaluation_that_takes_longer_than_the_training(
    tmp_path: Path, flags: tuple[str, ...], words: str | None
) -> None:
    job = small_job(tmp_path, "data.held_out=0.2", *flags)
    found = verify(job, ("files",)).cautions
    texts = [each.message for each in found if each.code == "evaluation-longer-than-training"]
    assert len(texts) == (words is not None)
    assert words is None or words in texts[0]


def test_the_size_of_files_is_known_and_that_of_others_is_not(tmp_path: Path) -> None:
    from setpoint.data.sources.config import Random, Stdlib, Text

    (tmp_path / "a.txt").write_text("a" * 99)
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    assert resolve(Text(paths=(str(tmp_path / "*.txt"),))).most_tokens() == 99
    assert resolve(Text(paths=(str(tmp_path / "b.parquet"),))).most_tokens() is None
    assert resolve(Text(paths=("missing.txt",))).most_tokens() is None
    assert resolve(Random(documents=3, length=5)).most_tokens() == 15
    assert (resolve(Stdlib()).most_tokens() or 0) > 1_000_000
