"""The preset `answers`, from a base to an export: questions whose answers are known."""

from pathlib import Path

import pytest

import setpoint.presets  # noqa: F401 - registers them
from setpoint.config.composition import compose
from setpoint.data.corpus import Corpus
from setpoint.data.sources.synthetic import QuestionsSource
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.run import train

from ..train.small import rows

MOST = len(".upper('abcd') == 'ABCD'.")
TASKS = {"upper": str.upper, "last": lambda word: word[-1]}


def job_of(source: str, *flags: str) -> Job:
    return compose(Job, source, flags=["tracking.progress=none", *flags]).resolve()


def test_the_loss_is_on_the_answers(tmp_path: Path) -> None:
    flags = (f"workspace={tmp_path}", "evaluation=null", "data.held_out=0", "model.layers=1")
    job = job_of("answers", "data.sources.0.documents=40", *flags)
    (corpus,), tokenizer = build_components(job).corpora, job.tokenizer.build()
    assert isinstance(corpus, Corpus) and corpus.trained is not None
    pairs = zip(corpus.tokens[1:], corpus.trained[1:], strict=True)  # the first is not a target
    trained = [ord("\n") if t == tokenizer.separator else t for t, counts in pairs if counts]
    answers = tokenizer.decode(trained).decode().split("\n")[:-1]
    (source,) = job.data.sources
    asked = list(QuestionsSource(source).questions())  # pyright: ignore[reportArgumentType]
    assert sorted(answers) == sorted(answer for _, answer in asked)
    assert len(set(asked)) == 40 and {text.partition("(")[0] for text, _ in asked} == set(TASKS)
    for text, answer in asked:
        task, word = text.partition("(")[0], text.split("'")[1]
        assert answer == repr(TASKS[task](word)) and len(f"{text}{answer}") < MOST
    assert job.data.sources[0].most_tokens() == 40 * MOST


@pytest.mark.slow
def test_the_preset_learns_on_another_base(tmp_path: Path) -> None:
    flags = (
        "model.dim=32", "model.layers=1", "precision.compute=fp32", "batch.global_size=4",
        "evaluation=null", f"workspace={tmp_path}",
    )  # fmt: skip
    base = train(job_of("tiny", *flags, "duration=2 steps")).directory
    small = ("data.sources.0.documents=300", "duration=240 steps", "optimizer.lr=3e-3")
    run = train(job_of("answers", *flags, *small, f"model.pretrained={base}")).directory
    losses = [row["loss"] for row in rows(run) if row["kind"] == "train"]
    assert sum(losses[-6:]) < sum(losses[:6]) - 6 * 0.4
