"""What the section refuses, and how it is written."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from setpoint.config import ConfigError
from setpoint.config.composition import compose
from setpoint.train.config import Job
from setpoint.train.run import train

from ...support.snapshots import compare
from ..rules.refusals import refusals
from ..small import rows, small_job, write_config

SOURCES = "sources=[{type=random, documents=3}]"
WEB = f"evaluation.datasets=[{{name=web, {SOURCES}}}]"
BEST = "evaluation.best"
STOPPING = "evaluation.early_stopping"
WRONG: dict[str, tuple[str, ...]] = {
    "one name twice": (f"evaluation.datasets=[{{name=a, {SOURCES}}}, {{name=a, {SOURCES}}}]",),
    "the name of what is held out": (f"evaluation.datasets=[{{name=held_out, {SOURCES}}}]",),
    "a name that is none": (f"evaluation.datasets=[{{name='a b', {SOURCES}}}]",),
    "no source": ("evaluation.datasets=[{name=web, sources=[]}]",),
    "the best on nothing": (WEB, f"{BEST}.data=wed"),
    "the best by nothing": (f"{BEST}.metric=los",),
    "the best by what is not counted": (f"{BEST}.metric=accuracy",),
    "nothing to end": (f"{STOPPING}={{patience=2}}", "evaluation.every=last_step"),
    "nothing to select": ("checkpoint.keep_best=false", f"{BEST}.metric=perplexity"),
    "another framework's names": (f"{STOPPING}.early_stopping_patience=3", f"{BEST}.monitor=loss"),
}


def test_what_is_refused(tmp_path: Path) -> None:
    compare("train/evaluation", refusals(tmp_path, WRONG))


def test_what_follows_from_the_metric(tmp_path: Path) -> None:
    for metric, direction in (("loss", "min"), ("accuracy", "max")):
        flags = ("evaluation.accuracy=true", f"{BEST}.metric={metric}")
        section = small_job(tmp_path, *flags).evaluation
        assert section is not None and section.best.direction == direction


def test_in_a_file_as_on_the_command_line(tmp_path: Path) -> None:
    """As the documentation shows both."""
    path = tmp_path / "judged.toml"
    base = str(write_config(tmp_path))
    path.write_text(
        f'extends = "{base}"\n[[evaluation.datasets]]\nname = "web"\nsequences = 5\n'
        '[[evaluation.datasets.sources]]\ntype = "random"\ndocuments = 3\n'
        '[evaluation.best]\ndata = "web"\n'
    )
    written = compose(Job, str(path)).resolve().evaluation
    item = "{name = web, sequences = 5, sources = [{type = random, documents = 3}]}"
    flags = [f"--evaluation.datasets=[{item}]", "--evaluation.best.data=web"]
    assert compose(Job, base, flags=flags).resolve().evaluation == written


NEVER = {
    # What stays: an evaluation, a look, a collection or a save at the start or the end.
    "evaluation.every=never": None,
    "checkpoint.every=never": None,
    "checkpoint.remote={url: 's3://a/b', every: never}": None,
    "resilience.gc={every: never}": None,
    "resilience.time_limit=never": None,
    "resilience.gpu_health={every: never}": None,
    # Nothing would stay.
    "resilience.gc={every: never, automatic: true}": "use gc = null",
    "resilience.stragglers={every: never}": "use stragglers = null",
    "adapter={type: relora, merge: {every: never}}": "merges are counted in steps",
}


def test_a_period_may_be_never_where_something_stays(tmp_path: Path) -> None:
    for flag, words in NEVER.items():
        more = ["parallel.device=cuda"] if "gpu" in flag else []
        with nullcontext() if words is None else pytest.raises(ConfigError, match=words):
            small_job(tmp_path, flag, *more)


def test_an_evaluation_that_never_comes_comes_at_the_end(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=5 steps", "evaluation.every=never")).directory
    assert [row["step"] for row in rows(run) if row["kind"] == "evaluation"] == [5]
    for flag, reason in (
        (f"{STOPPING}={{patience: 2}}", "there is nothing to stop after the last step"),
        ("schedule=plateau", "no evaluation takes place before the last step"),
    ):
        with pytest.raises(ConfigError, match=reason):
            small_job(tmp_path, "evaluation.every=never", flag)
