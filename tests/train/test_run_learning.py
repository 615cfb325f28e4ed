"""A run learns: its loss comes near the entropy of the source, which is known in closed form."""

import math
from pathlib import Path

import pytest

from setpoint.data.sources.synthetic import RandomSource
from setpoint.train.run import train

from .small import rows, small_job


def test_a_markov_source_is_learnt_to_its_entropy(tmp_path: Path) -> None:
    job = small_job(
        tmp_path, "duration=150 steps", "model.dim=32", "model.dropout=0", "optimizer.lr=2e-2",
        "batch.micro_size=16", "batch.accumulation=1", "batch.sequence_length=32",
        "data.sources.0.documents=200", "checkpoint.every=never", "evaluation.every=last_step",
        "evaluation.sequences=null",
    )  # fmt: skip
    outcome = train(job)
    assert outcome.score is not None
    (source,) = job.data.sources
    entropy = RandomSource(source).entropy()
    assert entropy == pytest.approx(_entropy_by_hand(8))
    # The ends of documents cost some bits more, and so do the first bytes after them.
    assert entropy < outcome.score.bits_per_byte < entropy + 0.12
    # A unigram model stays at log2(8) = 3 bits, twice as much.
    assert entropy < 1.7
    first = rows(outcome.directory)[0]
    assert first["loss"] > 0.95 * math.log(257)


def _entropy_by_hand(size: int) -> float:
    other = 0.25 / size
    successor = 0.75 + other
    return -(successor * math.log2(successor) + (size - 1) * other * math.log2(other))
