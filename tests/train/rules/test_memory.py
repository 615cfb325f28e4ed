"""What the section `memory` needs of others, said before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from setpoint.config import SetpointError
from setpoint.config.resolving.checks import verify
from setpoint.train.build.components import build_components

from ...support.snapshots import compare
from ..small import small_job
from .refusals import refusals

FULL, PARTS, OPERATORS = (
    f"memory.activation_checkpointing={name}" for name in ("full", "parts", "operators")
)
BELOW = "memory.activation_checkpointing"
ACTIVATIONS = "memory.activation_offload.limit=0"
REFUSED: dict[str, tuple[str, ...]] = {
    "activations on a CPU": (ACTIVATIONS, "parallel.device=cpu"),
    "a cache on a CPU": ("memory.empty_cache=10 steps", "parallel.device=cpu"),
    "reentrant and compiled": (FULL, f"{BELOW}.reentrant=true", "compile.scope=block"),
    "reentrant parts": (PARTS, f"{BELOW}.reentrant=true", "compile.scope=model"),
    "operators and offload": (OPERATORS, ACTIVATIONS),
    "offload within a compiled model": (ACTIVATIONS, "compile.scope=model"),
    "attention with dropout": (
        OPERATORS, f"{BELOW}.save=[attention]", "model.attention_dropout=0.1"
    ),
    "composed attention": (
        OPERATORS, f"{BELOW}.save=[attention]", "model.attention_backend=eager"
    ),
    "no parts": (PARTS, f"{BELOW}.parts=[]"),
    "an unknown part": (PARTS, f"{BELOW}.parts=[head]"),
    "nothing saved": (OPERATORS, f"{BELOW}.save=[]"),
    "no products to count": (OPERATORS, f"{BELOW}.save=[attention]", f"{BELOW}.matmul_every=2"),
    "no layers": (FULL, f"{BELOW}.every=0"),
    "reentrant operators": (OPERATORS, f"{BELOW}.reentrant=true"),
    "another system's name": ("memory.recompute_granularity=full", "memory.gpu_limit=1"),
}  # fmt: skip
TAKEN: tuple[tuple[str, ...], ...] = (
    (FULL, f"{BELOW}.reentrant=true", f"{BELOW}.every=2"),
    (FULL, ACTIVATIONS, "compile.scope=block"),
    (OPERATORS, "model.attention_dropout=0.1"),
    (PARTS, ACTIVATIONS, "memory.empty_cache=10 steps", "parallel.device=cuda"),
)


def test_what_is_refused(tmp_path: Path) -> None:
    compare("train/memory", refusals(tmp_path, REFUSED))


@pytest.mark.parametrize("flags", TAKEN)
def test_what_is_taken(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert small_job(tmp_path, *flags)


def test_a_machine_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = small_job(tmp_path, ACTIVATIONS, "memory.empty_cache=10 steps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    paths = [problem.path for problem in verify(job, {"torch"}).problems]
    fields = ("activation_offload", "empty_cache")
    assert paths == [f"memory.{field}" for field in fields]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert verify(job, {"torch"}).problems == []


def test_models_without_layers_or_parts_are_refused_when_they_are_built(tmp_path: Path) -> None:
    table = ("model=import", "model.target=torch.nn.Embedding", "model.num_embeddings=257")
    flags = (*table, "model.embedding_dim=257", "data.held_out=0.2")
    with pytest.raises(SetpointError, match="no layers that repeat"):
        build_components(small_job(tmp_path, *flags, FULL))
