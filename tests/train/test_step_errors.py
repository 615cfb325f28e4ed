"""What PyTorch or somebody's optimizer refuses in an update is said in words, and recorded."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from setpoint.config import RunError
from setpoint.config.values.user_code import allow_imports
from setpoint.memory.usage import is_out_of_memory
from setpoint.train.engine import explain_oom, raise_named
from setpoint.train.loop import Loop
from setpoint.train.rules.run_rules import memory_suggestions
from setpoint.train.run import train

from .small import events, small_job

SHORT = ("duration=2 steps", "evaluation=null")
SPARSE = ("optimizer=import", "optimizer.target=torch.optim.SparseAdam", "optimizer.weight_decay=0")


class Unpooled(torch.nn.Module):
    """A model of the user's own whose backward pass alone cannot be deterministic."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(vocab_size, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up logits."""
        return Refusing.apply(self.table(tokens))


class Refusing(torch.autograd.Function):
    """Says in its backward pass what operations of CUDA say there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        indices = torch.zeros(1, 1, 4, 4, dtype=torch.int64)
        torch.nn.functional.max_unpool2d(torch.ones(1, 1, 4, 4), indices, kernel_size=[2, 2])
        return grads[0]


allow_imports(__name__)


def faults(path: Path) -> list[str]:
    runs = [found.parent for found in path.rglob("events.jsonl")]
    return [row["error"] for row in events(runs[0]) if row["event"] == "fault"]


def test_an_imported_optimizer_that_refuses_its_step(tmp_path: Path) -> None:
    words = "optimizer.target = torch.optim.SparseAdam failed in its step: RuntimeError: SparseAdam"
    with pytest.raises(RunError, match=words) as caught:
        train(small_job(tmp_path, *SHORT, *SPARSE))
    assert "does not support dense gradients" in str(caught.value)
    assert faults(tmp_path) == [str(caught.value)]


class Misspelt(torch.optim.SGD):
    """Reads an attribute that it does not have."""

    def step(self, closure: Any = None) -> Any:
        return self.momentun


def test_a_bug_in_an_imported_optimizer(tmp_path: Path) -> None:
    own = ("optimizer=import", f"optimizer.target={__name__}.Misspelt")
    with pytest.raises(RunError) as caught:
        train(small_job(tmp_path, *SHORT, *own))
    text = re.sub(r"\(\S+py:\d+\)", "(FILE:N)", str(caught.value))
    assert text == (
        f"optimizer.target = {__name__}.Misspelt failed in its step: AttributeError: 'Misspelt' "
        f"object has no attribute 'momentun' (FILE:N)"
    )


def test_a_backward_pass_without_a_deterministic_form(tmp_path: Path) -> None:
    own = ("model=import", f"model.target={__name__}.Unpooled")
    words = "deterministic = true: .* no deterministic form of max_unpooling2d_forward_out "
    with pytest.raises(RunError, match=words) as caught:
        train(small_job(tmp_path, *SHORT, *own, "deterministic=true"))
    assert faults(tmp_path) == [str(caught.value)]
    assert not torch.are_deterministic_algorithms_enabled()
    assert train(small_job(tmp_path / "free", *SHORT, *own)).status == 0


def test_what_others_know_better_passes(tmp_path: Path) -> None:
    theirs = small_job(tmp_path, *SPARSE).optimizer
    for error in (
        torch.OutOfMemoryError("x"),
        RuntimeError("x does not have a deterministic implementation"),
        RunError("x"),
    ):
        with pytest.raises(type(error)) as caught:
            raise_named(error, theirs)
        assert caught.value is error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("unable to mmap from file </torch_1_2>: Cannot allocate memory (12)"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        torch.AcceleratorError("CUDA error: out of memory\nSearch for it", 2),
    ],
    ids=["Python", "CUDA", "CPU", "shared", "fork", "page-locked"],
)
def test_too_little_memory_is_said_in_words(tmp_path: Path, error: Exception) -> None:
    job = small_job(tmp_path)
    words = r"too little memory for batch.micro_size = \d+"
    with pytest.raises(RunError, match=words), explain_oom(job):
        raise error
    assert is_out_of_memory(error)


def test_what_helps_is_what_is_not_done_yet(tmp_path: Path) -> None:
    plain = memory_suggestions(small_job(tmp_path / "plain", "parallel.device=cpu"))
    assert [lever.split(",")[0] for lever in plain] == [
        "a smaller batch.micro_size (with a larger batch.accumulation)",
        "loss.type = chunked_cross_entropy",
        "memory.activation_checkpointing.type = full",
        "a shorter batch.sequence_length",
        "a smaller model",
    ]
    sparing = memory_suggestions(
        small_job(
            tmp_path / "sparing",
            "batch.micro_size=1",
            "loss=chunked_cross_entropy",
            "memory.activation_checkpointing=full",
        )
    )
    assert sparing[0].startswith("memory.activation_offload")
    assert not any("micro_size" in lever for lever in sparing)


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shape"), explain_oom(small_job(tmp_path)):
        raise RuntimeError("shape mismatch")
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("not enough memory"))


def test_a_crash_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Loop, "take_step", crash)
    with pytest.raises(RuntimeError, match="a bug"):
        train(small_job(tmp_path, "name=crash"), tmp_path / "crash")
    last = json.loads((tmp_path / "crash" / "events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["error"]) == ("fault", "RuntimeError('a bug')")
