"""The score against a direct computation, and bits per byte against its formula."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from setpoint.train.build import build_parts
from setpoint.train.evaluate import evaluate, judged_part

from .small import small_job


@pytest.mark.parametrize("sequences", ["null", "1", "7", "9999"])
@pytest.mark.parametrize("sequence_length", [16, 23])
def test_equal_to_a_direct_computation(
    tmp_path: Path, sequences: str, sequence_length: int
) -> None:
    job = small_job(
        tmp_path, f"evaluation.sequences={sequences}", f"batch.sequence_length={sequence_length}"
    )
    parts = build_parts(job)
    score = evaluate(job, parts)
    # Each token but the first is predicted once, from what precedes it in its own window.
    tokens = torch.from_numpy(parts.held_out.tokens.astype(np.int64))
    end = len(tokens) - 1
    if sequences != "null":
        end = min(end, int(sequences) * sequence_length)
    nats, count = 0.0, 0
    parts.model.eval()
    with torch.no_grad():
        for start in range(0, end, sequence_length):
            stop = min(start + sequence_length, end)
            logits = parts.model(tokens[None, start:stop])[0].double()
            nats += float(F.cross_entropy(logits, tokens[start + 1 : stop + 1], reduction="sum"))
            count += stop - start
    size = int((tokens[1 : end + 1] != 256).sum())
    assert score.tokens == count == end
    assert score.loss == pytest.approx(nats / count, rel=1e-6)
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-6)
    part = judged_part(job, parts.held_out)
    assert (part.byte_count, len(part.tokens)) == (size, end + 1)


def test_a_model_that_knows_nothing(tmp_path: Path) -> None:
    """Uniform over 257 tokens: log2(257) bits a token, and separators are no bytes."""
    job = small_job(tmp_path, "evaluation.sequences=null")
    parts = build_parts(job)
    for parameter in parts.model.parameters():
        torch.nn.init.zeros_(parameter)
    score = evaluate(job, parts)
    assert score.loss == pytest.approx(math.log(257), rel=1e-6)
    separators = score.tokens - parts.held_out.byte_count
    assert separators == len(parts.held_out.files)
    expected = math.log2(257) * score.tokens / parts.held_out.byte_count
    assert score.bits_per_byte == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("micro", [1, 3, 64])
def test_independent_of_the_portions(tmp_path: Path, micro: int) -> None:
    job = small_job(tmp_path, f"batch.micro_size={micro}")
    score = evaluate(job, build_parts(job))
    other = small_job(tmp_path, "batch.micro_size=2")
    assert score.loss == pytest.approx(evaluate(other, build_parts(other)).loss, rel=1e-6)


def test_nothing_of_the_state_changes(tmp_path: Path) -> None:
    job = small_job(tmp_path, "model.dropout=0.5")
    parts = build_parts(job)
    parts.model.train()
    noise, loader = torch.get_rng_state(), parts.loader.state_dict()
    first = evaluate(job, parts)
    assert evaluate(job, parts) == first, "dropout is off"
    assert torch.equal(torch.get_rng_state(), noise)
    assert parts.loader.state_dict() == loader
    assert all(module.training for module in parts.model.modules())
    assert all(parameter.grad is None for parameter in parts.model.parameters())


def test_bf16_is_used(tmp_path: Path) -> None:
    full, half = (small_job(tmp_path, f"precision.compute={c}") for c in ("fp32", "bf16"))
    scores = [evaluate(job, build_parts(job)).loss for job in (full, half)]
    assert scores[0] != scores[1] == pytest.approx(scores[0], rel=1e-2)
