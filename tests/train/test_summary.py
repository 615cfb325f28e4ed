"""The table at the end says what the record says."""

from __future__ import annotations

import io
from pathlib import Path

from setpoint.config import compose, resolve
from setpoint.data.evaluation import ngram_baselines
from setpoint.train.config import Job
from setpoint.train.finish import print_summary
from setpoint.train.run import Run, train
from setpoint.train.run_name import draw_seed

from .small import rows, small_job


def summary(outcome: Run) -> list[str]:
    stream = io.StringIO()
    print_summary(outcome, stream)
    return [" ".join(line.split()) for line in stream.getvalue().splitlines()]


def test_a_finished_run(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=6 steps", "evaluation.baselines=true")
    outcome = train(job)
    lines = summary(outcome)
    assert lines[0] == f"small: {outcome.directory}"
    last = rows(outcome.directory)[-1]
    assert {"state finished", "steps 6", f"held-out loss {last['held_out_loss']:.4f}"} < set(lines)
    # The baselines are judged on the very text that the model is judged on.
    components = outcome.components
    end = 12 * 16 + 1
    assert f"tokens {6 * 64}" in lines
    model = f"this model after 6 steps {last['held_out_bits_per_byte']:.3f}"
    assert model in lines
    assert any(line.startswith("unigram (how frequent is the byte) ") for line in lines)
    assert components.held_out.identity.tokens > end
    whole = ngram_baselines(components.corpora, components.held_out.corpus)
    assert 2.5 < whole.unigram < 3.5
    assert whole.bigram < 2.0


def test_a_run_that_had_been_finished(tmp_path: Path) -> None:
    """Asked for again, it shows what it came to, from its own record."""
    job = small_job(tmp_path, "duration=3 steps", "evaluation.baselines=true")
    first = summary(train(job))
    again = summary(train(job))
    assert [line for line in first if not line.startswith("tokens/s")] == again
    assert any(line.startswith("held-out loss ") for line in again)


def test_named_data_sets_and_an_early_end(tmp_path: Path) -> None:
    """A model that learns nothing is no better after the first evaluation."""
    web = "{name=web, sources=[{type=random, documents=9, length=90}]}"
    job = small_job(
        tmp_path, "optimizer.lr=1e-30", "schedule=constant", "evaluation.accuracy=true",
        f"evaluation.datasets=[{web}]", "evaluation.early_stopping.patience=1",
    )  # fmt: skip
    outcome = train(job)
    lines = summary(outcome)
    assert f"state finished early: {outcome.reason}" in lines
    assert outcome.reason is not None and "steps 6" in lines
    names = [line.rpartition(" ")[0] for line in lines[-4:]]
    assert names == ["held-out loss", "held-out accuracy", "web loss", "web accuracy"]
    assert lines[-2] == f"web loss {outcome.scores['web'].loss:.4f}"
    again = summary(train(job))
    assert [line for line in lines if not line.startswith("tokens/s")] == again


def test_without_evaluation(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=2 steps", "evaluation=null")
    assert not any("held-out" in line for line in summary(train(job)))


def test_a_stopped_run_is_said_to_go_on(tmp_path: Path) -> None:
    job = small_job(tmp_path, "duration=2 steps")
    run = train(job)
    run.status = 130
    lines = summary(run)
    assert "state interrupted" in lines
    assert lines[-1] == "saved at step 2; the same command resumes there"


def test_a_run_of_a_drawn_seed_resumes_by_its_directory(tmp_path: Path) -> None:
    """The same command would draw another seed, and so begin another run."""
    draft = small_job(tmp_path, "duration=2 steps", "seed=null").evolve()
    draw_seed(draft)
    job = resolve(draft)
    outcome = train(job)
    outcome.status = 130
    command = f"saved at step 2; `setpoint train {outcome.directory}` resumes there"
    assert summary(outcome)[-1] == command
    outcome.job = compose(Job, str(outcome.directory)).resolve()
    assert summary(outcome)[-1] == "saved at step 2; the same command resumes there"
