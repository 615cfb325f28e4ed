"""Families of transformers are trained as transformers itself trains them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.train.run import train

from ..few import few
from ..forks import forked
from ..train.small import rows
from .huggingface_families import FAMILIES, family_job, plain_loop, weights_of


@pytest.mark.parametrize("kind", few(FAMILIES, ["gpt_oss", "qwen3_next"]))
def test_packed_steps_equal_a_plain_loop(tmp_path: Path, kind: str) -> None:
    job = family_job(tmp_path, kind, "memory.activation_checkpointing=full")
    outcome = train(job)
    model: Any = outcome.parts.model
    recurrent = kind in ("qwen3_next", "qwen3_5_text")
    assert (model.attention, model.isolation) == ("setpoint", "rows" if recurrent else "mask")
    losses, weights = plain_loop(job)
    found = [row["loss"] for row in rows(outcome.directory) if "loss" in row]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(losses), rtol=1e-5, atol=1e-5)
    trained = weights_of(outcome.parts)
    assert trained.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(trained[name], weight, rtol=1e-5, atol=1e-5, msg=name)


def test_two_ranks_with_divided_weights_train_what_one_does() -> None:
    assert "gpt_oss, shard=2: equal" in forked(
        "tests.model.huggingface_ranks", "gpt_oss", "shard=2"
    )


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["shard=2", "replicate=2"])
def test_two_ranks_train_what_one_does(shape: str) -> None:
    said = forked("tests.model.huggingface_ranks", *FAMILIES, shape)
    assert all(f"{kind}, {shape}: equal" in said for kind in FAMILIES)
