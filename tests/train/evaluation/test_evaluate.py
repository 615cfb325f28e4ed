"""The score against a direct computation, and bits per byte against its formula."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from setpoint.config.values.user_code import allow_imports
from setpoint.data.corpus import Corpus
from setpoint.data.evaluation import EvaluationFeed
from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.evaluation.evaluate import eval_slice, evaluate
from setpoint.train.evaluation.score import Score
from setpoint.train.step.loop import Loop
from setpoint.train.step.position import Position

from ...few import few
from ..small import small_job

allow_imports(__name__)
LOSSES = ("loss=cross_entropy", "loss=chunked_cross_entropy")
WEB = (
    "evaluation.datasets=[{name=web, sequences=5, sources=[{type=random, documents=9, length=90, "
    "alphabet=8, seed=3}, {type=random, name=more, documents=2, length=300, alphabet=9}]}]"
)


def held_out(job: Job) -> Score:
    """The score of held-out text before training."""
    return evaluate(job, build_components(job))["held_out"]


def learned(job: Job) -> Components:
    """What is right now and then."""
    parts = build_components(job)
    Loop(job, parts, [], StopRequest(), Position()).run()
    return parts


def computed(
    model: torch.nn.Module, corpus: Corpus, length: int, sequences: int | None
) -> tuple[float, int, int, int]:
    """Nats, tokens, bytes and right guesses, window by window.

    Each token but the first is predicted once, from what precedes it in its own window.
    """
    tokens = torch.from_numpy(corpus.tokens.astype(np.int64))
    end = min(len(tokens) - 1, len(tokens) if sequences is None else sequences * length)
    nats, count, right = 0.0, 0, 0
    model.eval()
    with torch.no_grad():
        for start in range(0, end, length):
            stop = min(start + length, end)
            logits = model(tokens[None, start:stop])[0].double()
            wanted = tokens[start + 1 : stop + 1]
            nats += float(F.cross_entropy(logits, wanted, reduction="sum"))
            right += int(np.sum(np.argmax(logits.numpy(), axis=1) == wanted.numpy()))
            count += stop - start
    return nats, count, int((tokens[1 : end + 1] != 256).sum()), right


@pytest.mark.parametrize("sequences", ["null", "1", "7", "9999"])
@pytest.mark.parametrize("sequence_length", [16, 23])
def test_equal_to_a_direct_computation(
    tmp_path: Path, sequences: str, sequence_length: int
) -> None:
    job = small_job(
        tmp_path, f"evaluation.sequences={sequences}", f"batch.sequence_length={sequence_length}"
    )
    parts = build_components(job)
    score = evaluate(job, parts)["held_out"]
    limit = None if sequences == "null" else int(sequences)
    nats, count, size, _ = computed(parts.model, parts.held_out.corpus, sequence_length, limit)
    assert score.tokens == count
    assert score.loss == pytest.approx(nats / count, rel=1e-6)
    assert score.perplexity == pytest.approx(np.exp(nats / count), rel=1e-6)
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-6)
    assert score.accuracy is None
    part = eval_slice(job, parts.held_out)
    assert (part.byte_count, len(part.tokens)) == (size, count + 1)


@pytest.mark.parametrize("loss", LOSSES)
def test_named_data_sets_and_accuracy(tmp_path: Path, loss: str) -> None:
    job = small_job(tmp_path, WEB, "evaluation.accuracy=true", loss)
    parts = learned(job)
    scores = evaluate(job, parts)
    assert list(scores) == ["held_out", "web"]
    assert len(parts.eval_sets["web"].identity.files) == 11
    for name, corpus, sequences in (
        ("held_out", parts.held_out.corpus, 12),
        ("web", parts.eval_sets["web"].corpus, 5),
    ):
        nats, count, size, right = computed(parts.model, corpus, 16, sequences)
        score = scores[name]
        assert score.tokens == count == 16 * sequences
        assert score.loss == pytest.approx(nats / count, rel=1e-6)
        assert score.bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-6)
        assert score.accuracy == right / count and right > 0
    assert evaluate(job, parts) == scores, "the same sequences each time"


@pytest.mark.parametrize(
    ("loss", "flag"),
    few(product(LOSSES, ("loss.ignore_index=33", "loss.token_weights={33: 0, 34: 5}")), every=3),
)
def test_accuracy_of_what_counts(tmp_path: Path, loss: str, flag: str) -> None:
    job = small_job(tmp_path, loss, flag, "evaluation.accuracy=true", "evaluation.sequences=null")
    plain = small_job(tmp_path, "evaluation.accuracy=true", "evaluation.sequences=null")
    parts = build_components(job)
    # A model that is right about what is left out as well, since it learned from it.
    parts.model.load_state_dict(learned(plain).model.state_dict())
    score = evaluate(job, parts)["held_out"]
    right, tokens, size, left_out = 0, 0, 0, 0
    for batch in EvaluationFeed({"t": (parts.held_out, None)}, micro_size=1).batches("t"):
        with torch.no_grad():
            guesses = parts.model.eval()(batch.inputs).argmax(-1)
        counts = (batch.targets != -100) & (batch.targets != 33)
        right += int((guesses == batch.targets)[counts].sum())
        tokens += int(counts.sum())
        size += int((counts & (batch.targets != 256)).sum())
        left_out += int(((guesses == batch.targets) & ~counts).sum())
    assert left_out, "the test would not see them"
    assert (score.tokens, score.accuracy) == (tokens, right / tokens)
    bits = score.loss * tokens / math.log(2)
    assert score.bits_per_byte == pytest.approx(bits / size, rel=1e-6), "of what counts"
    # Of all targets, among them those that are left out, another share is right.
    assert evaluate(plain, parts)["held_out"].tokens == tokens, "the loss of these parts decides"
    assert held_out(plain).tokens > tokens


def test_accuracy_of_a_model_without_a_head(tmp_path: Path) -> None:
    """It gives logits; a table of them that says what follows is always right."""
    flags = ("model=import", f"model.target={__name__}.Follows")
    source = "[{type=text, paths=[TMP/abc.txt]}]".replace("TMP", str(tmp_path))
    (tmp_path / "abc.txt").write_text("abc" * 40)
    job = small_job(
        tmp_path,
        *flags,
        "evaluation.accuracy=true",
        f"evaluation.datasets=[{{name=abc, sources={source}}}]",
    )
    score = evaluate(job, build_components(job))["abc"]
    # But for the first letter, which follows a separator, and the separator at the end.
    assert (score.tokens, score.accuracy) == (121, 119 / 121)
    assert score.loss > 5


class Follows(torch.nn.Module):
    """Logits of the letter after the one read, in a circle of three."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(vocab_size, vocab_size))
        with torch.no_grad():
            for before, after in ("ab", "bc", "ca"):
                self.table[ord(before), ord(after)] = 0.1

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[tokens]


def test_a_model_that_knows_nothing(tmp_path: Path) -> None:
    """Uniform over 257 tokens: log2(257) bits a token, and separators are no bytes."""
    job = small_job(tmp_path, "evaluation.sequences=null")
    parts = build_components(job)
    for parameter in parts.model.parameters():
        torch.nn.init.zeros_(parameter)
    score = evaluate(job, parts)["held_out"]
    assert score.loss == pytest.approx(math.log(257), rel=1e-6)
    separators = score.tokens - parts.held_out.identity.bytes
    assert separators == len(parts.held_out.identity.files)
    expected = math.log2(257) * score.tokens / parts.held_out.identity.bytes
    assert score.bits_per_byte == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("micro", [1, 3, 64])
def test_independent_of_the_portions(tmp_path: Path, micro: int) -> None:
    job = small_job(tmp_path, f"batch.micro_size={micro}")
    score = held_out(job)
    other = small_job(tmp_path, "batch.micro_size=2")
    assert score.loss == pytest.approx(held_out(other).loss, rel=1e-6)


def test_nothing_of_the_state_changes(tmp_path: Path) -> None:
    job = small_job(tmp_path, "model.dropout=0.5")
    parts = build_components(job)
    parts.model.train()
    noise, loader = torch.get_rng_state(), parts.feed.state_dict()
    first = evaluate(job, parts)
    assert evaluate(job, parts) == first, "dropout is off"
    assert torch.equal(torch.get_rng_state(), noise)
    assert parts.feed.state_dict() == loader
    assert all(module.training for module in parts.model.modules())
    assert all(parameter.grad is None for parameter in parts.model.parameters())


def test_bf16_is_used(tmp_path: Path) -> None:
    full, half = (small_job(tmp_path, f"precision.compute={c}") for c in ("fp32", "bf16"))
    scores = [held_out(job).loss for job in (full, half)]
    assert scores[0] != scores[1] == pytest.approx(scores[0], rel=1e-2)


def test_how_far_an_evaluation_is(tmp_path: Path) -> None:
    job = small_job(tmp_path, "evaluation.sequences=5")
    told: list[tuple[str, int, int | None]] = []
    evaluate(job, build_components(job), show=lambda *each: told.append(each))
    what = "evaluating held_out, sequences"
    assert told == [(what, done, 5) for done in (0, 2, 4, 5)]
