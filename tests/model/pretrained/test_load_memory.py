"""Loading takes the memory of the model, and of one tensor more."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.model import load_pretrained
from setpoint.model.moe.config import MoE

from .ours import directory


class Meter(TorchDispatchMode):
    """Bytes of the storages that operations have made and that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                self.count(tensor.untyped_storage())
        return made

    def count(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.gone, key, size)

    def gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


@pytest.mark.parametrize("dtype", [None, "bf16"])
def test_peak_memory(tmp_path: Path, dtype: str | None) -> None:
    fields = {"dim": 64, "ffn_dim": 128, "layers": 6, "vocab_size": 500}
    folder = directory(
        tmp_path / "model",
        qk_norm=True,
        merge_qkv=True,
        moe=MoE(experts=4, expert_dim=64, first_dense=2),
        **fields,
    )
    with Meter() as meter:
        model = load_pretrained(folder, dtype=dtype)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    largest = 4 * max(p.numel() for p in model.parameters())
    assert size > 8 * largest / 4
    # A transposed or cast block is copied once on its way.
    assert size <= meter.peak <= size + 2 * largest
