"""Loading takes the memory of the model, and of one tensor more."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from setpoint.adapter.config import LoRA
from setpoint.adapter.quantize.config import FP8
from setpoint.config import resolve
from setpoint.infer.loaded_model import add_adapter
from setpoint.model import load_pretrained
from setpoint.model.build import skeleton
from setpoint.model.moe.config import MoE
from setpoint.model.pretrained import dequantize
from setpoint.model.pretrained.config_json import read_config
from setpoint.model.pretrained.load import start_from

from .ours import directory
from .quantized_files import KEPT, quantize_files


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


@pytest.mark.parametrize("keeps", [False, True])
def test_quantized_files_are_never_dense_as_a_whole(
    tmp_path: Path, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = directory(tmp_path, dim=128, heads=4, ffn_dim=256, layers=6, vocab_size=500)
    quantize_files(folder, KEPT["fp8"])
    monkeypatch.setattr(dequantize, "AT_ONCE", 2**12)
    config = resolve(read_config(folder)[0].evolve(pretrained=str(folder)))
    model: Any = skeleton(config, 500)
    if keeps:
        quantize = resolve(FP8(group_size=16))
        add_adapter(resolve(LoRA(rank=2, quantize=quantize)), config, model)
    with Meter() as meter:
        start_from(config, model, "cpu", torch.bfloat16, skeleton(config, 500))
    held = [each for each in model.parameters() if not each.is_meta]
    size = sum(each.nbytes for each in held)
    # Beside the model: a tensor of a file, or a few rows in fp32.
    assert size <= meter.peak <= size + 2 * max(each.nbytes for each in held) + 2**16
