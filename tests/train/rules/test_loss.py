"""What a loss needs of other sections, said before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.config.resolving.checks import verify
from setpoint.train.rules.data import leaves_out

from ...support.snapshots import compare
from ..small import small_job
from .refusals import refusals

IMPORTED = (
    "model=import", "model.target=torch.nn.Embedding",
    "model.num_embeddings=257", "model.embedding_dim=257",
)  # fmt: skip
REFUSED: dict[str, tuple[str, ...]] = {
    "hidden states of an imported model": ("loss=chunked_cross_entropy", *IMPORTED),
    "a soft cap": ("loss=linear_cross_entropy", "model.logit_soft_cap=30"),
    "a token that is not there": ("loss.ignore_index=257",),
    "the weight of such": ("loss.token_weights={300: 0.5}",),
    "no token": ("loss.token_weights={x: 1, '01': 2, 1.5: 3}",),
    "a token that is left out": ("loss.token_weights={7: 2}", "loss.ignore_index=7"),
    "no weights": ("loss.token_weights={}",),
    "a negative weight": ("loss.token_weights={7: -2}",),
    "baselines": ("loss.ignore_index=33", "evaluation.baselines=true"),
    "baselines and weights": ("loss.token_weights={33: 0}", "evaluation.baselines=true"),
    "another type's field": ("loss=linear_cross_entropy", "loss.label_smoothing=0.1"),
    "a chunk of nothing": ("loss=chunked_cross_entropy", "loss.chunk_size=0"),
    "another system's name": ("loss.ce_chunk_size=4096",),
}  # fmt: skip
TAKEN: tuple[tuple[str, ...], ...] = (
    ("loss=chunked_cross_entropy", "model.logit_soft_cap=30"),
    ("loss.token_weights={33: 0.5}", "evaluation.baselines=true"),
    ("loss.ignore_index=256",),
    IMPORTED,
)


def test_what_is_refused(tmp_path: Path) -> None:
    compare("train/loss", refusals(tmp_path, REFUSED))


@pytest.mark.parametrize("flags", TAKEN)
def test_what_is_taken(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert small_job(tmp_path, *flags)


def test_which_tokens_are_left_out(tmp_path: Path) -> None:
    cases: dict[tuple[str, ...], tuple[tuple[int, ...], str | None]] = {
        (): ((), None),
        ("loss.token_weights={33: 0.5}",): ((), None),
        ("loss.ignore_index=40",): ((40,), "loss.ignore_index"),
        ("loss=linear_cross_entropy", "loss.ignore_index=40"): ((40,), "loss.ignore_index"),
        ("loss.token_weights={33: 0, 7: 0, 8: 2}",): ((7, 33), "loss.token_weights"),
        ("loss.token_weights={33: 0}", "loss.ignore_index=4"): ((4, 33), "loss.ignore_index"),
        ("loss=import", "loss.target=torch.nn.CrossEntropyLoss"): ((), None),
    }
    for flags, wanted in cases.items():
        job = small_job(tmp_path, *flags)
        assert (job.loss.left_out, leaves_out(job)) == wanted


def test_what_needs_torch_is_checked_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = "setpoint.loss.linear.linear_missing"
    job = small_job(tmp_path, "loss=linear_cross_entropy")
    monkeypatch.setattr(where, lambda: "is not there")
    found = verify(job, {"torch"})
    assert [problem.path for problem in found.problems] == ["loss.type"]
    monkeypatch.setattr(where, lambda: None)
    assert not verify(job, {"torch"}).problems
    assert any("loss" in str(each) for each in verify(job, ()).skipped)
