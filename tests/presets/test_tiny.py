"""The preset `tiny`, which shares nothing and trains, and modifiers. Values are in tests/golden."""

from __future__ import annotations

from pathlib import Path

import setpoint.presets  # registers the presets
from setpoint.config import resolve
from setpoint.config.composition import compose
from setpoint.config.record.record import differences, fingerprint
from setpoint.data.evaluation import ngram_baselines
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.evaluation.scores import eval_slice
from setpoint.train.run import train
from setpoint.units import Duration, Period


def test_two_calls_share_nothing() -> None:
    first, second = setpoint.presets.tiny.tiny(), setpoint.presets.tiny.tiny()
    first.model.layers = 7
    first.user.note = "mine"
    assert fingerprint(resolve(second)) == fingerprint(resolve(setpoint.presets.tiny.tiny()))
    assert fingerprint(resolve(first)) != fingerprint(resolve(second))


def test_it_trains_on_real_text(tmp_path: Path) -> None:
    """Two updates of the preset as it is, but for its size: the path of `make demo`."""
    flags = [
        f"workspace={tmp_path}", "duration=2 steps", "evaluation.sequences=2", "model.layers=1",
        "batch.global_size=2", 'data.sources.0.include=["json/*", "email/*"]',
        "tracking.progress=none",
    ]  # fmt: skip
    job = compose(Job, "tiny", flags=flags).resolve()
    outcome = train(job)
    assert outcome.status == 0
    assert outcome.score is not None
    components = build_components(job)
    found = ngram_baselines(components.corpora, eval_slice(job, components.held_out))
    assert found.trigram < found.bigram < found.unigram < outcome.score.bits_per_byte


def test_smoke_is_short() -> None:
    job = compose(Job, "tiny", modifiers=["smoke(steps=3)"]).resolve()
    assert job.duration == Duration("3 steps")
    assert job.evaluation is not None
    assert job.evaluation.every == Period("last_step")
    assert compose(Job, "tiny", modifiers=["smoke"]).resolve().duration == Duration("10 steps")


def test_reproducible_touches_two_values() -> None:
    plain = compose(Job, "tiny").resolve()
    job = compose(Job, "tiny", modifiers=["reproducible"]).resolve()
    changed = {item.path: item.right for item in differences(plain, job)}
    assert changed == {"deterministic": True, "precision.compute": "fp32"}


def test_modifiers_combine_and_flags_win() -> None:
    job = compose(
        Job, "tiny", modifiers=["smoke", "reproducible"], flags=["duration=5 steps"]
    ).resolve()
    assert (job.duration, job.deterministic) == (Duration("5 steps"), True)
