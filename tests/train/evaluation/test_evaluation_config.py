"""Refusals of the section, and its forms in files and flags."""

from pathlib import Path

from setpoint.config import ConfigError
from setpoint.config.composition import compose
from setpoint.train.config import Job
from setpoint.train.run import train

from ...support.snapshots import compare, refused
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


def test_a_period_may_be_never_where_something_remains(tmp_path: Path) -> None:
    """An evaluation, a look, a collection or a save at the start or the end."""
    for flag in (
        "evaluation.every=never",
        "checkpoint.every=never",
        "checkpoint.remote={url: 's3://a/b', every: never}",
        "resilience.gc={every: never}",
        "resilience.time_limit=never",
    ):
        small_job(tmp_path, flag)
    small_job(tmp_path, "resilience.gpu_health={every: never}", "parallel.device=cuda")
    for flag in (
        "resilience.gc={every: never, automatic: true}",
        "resilience.stragglers={every: never}",
        "adapter={type: relora, merge: {every: never}}",
    ):
        with refused(ConfigError):
            small_job(tmp_path, flag)


def test_an_evaluation_that_never_comes_comes_at_the_end(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=5 steps", "evaluation.every=never")).directory
    assert [row["step"] for row in rows(run) if row["kind"] == "evaluation"] == [5]
    for flag in (f"{STOPPING}={{patience: 2}}", "schedule=plateau"):
        with refused(ConfigError):
            small_job(tmp_path, "evaluation.every=never", flag)
