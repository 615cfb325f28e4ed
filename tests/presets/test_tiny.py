"""The preset `tiny`: it shares nothing, and trains. Its values are kept in tests/golden."""

from __future__ import annotations

from pathlib import Path

import setpoint.presets  # registers the presets
from setpoint.config import resolve
from setpoint.config.composition import compose
from setpoint.config.record.record import fingerprint
from setpoint.data.evaluation import ngram_baselines
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.evaluation.scores import eval_slice
from setpoint.train.run import train


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
