"""Weights that files hold quantized, against dense ones by the formats' definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from setpoint.config import RunError, SetpointError, resolve
from setpoint.model import config_from_pretrained, load_pretrained, save_pretrained
from setpoint.model.foreign import HuggingFaceModel
from setpoint.model.pretrained import dequantize
from setpoint.model.pretrained.quantized import dense_tensors
from setpoint.model.pretrained.read_tensor import TensorReader
from setpoint.model.pretrained.start import start_from

from .ours import change_config, directory, rewrite
from .quantized_files import E2M1, FORMATS, nibbles, packed, quantize_files
from .theirs import make

SIZES: dict[str, Any] = {"dim": 64, "heads": 4, "ffn_dim": 96}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a few rows dense at a time."""
    monkeypatch.setattr(dequantize, "AT_ONCE", 1000)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.usefixtures("small_pieces")
def test_dense_weights_are_those_of_the_format(name: str, tmp_path: Path) -> None:
    folder = directory(tmp_path / "quantized", **SIZES)
    dense = quantize_files(folder, name)
    infos = dense_tensors(folder)
    assert {n: info.shape for n, info in infos.items()} == {
        n: tuple(tensor.shape) for n, tensor in dense.items()
    }
    with TensorReader() as reader:
        for own, tensor in dense.items():
            assert torch.equal(reader.read(infos[own]), tensor), own
            if tensor.ndim == 2:  # as ranks divide it
                rows, columns = (5, tensor.shape[0] - 3), (tensor.shape[1] // 2, tensor.shape[1])
                box = reader.read_box(infos[own], [rows, columns])
                assert torch.equal(box, tensor[slice(*rows), slice(*columns)])


@pytest.mark.parametrize("name", FORMATS)
def test_models_are_those_of_the_dense_weights(name: str, tmp_path: Path) -> None:
    """Ours, and that of transformers, whose exports are dense and say so."""
    folder = directory(tmp_path / "quantized", **SIZES)
    dense = quantize_files(folder, name)
    plain = directory(tmp_path / "plain", **SIZES)
    save_file(dense, plain / "model.safetensors", {"format": "pt"})
    change_config(plain, dtype="bfloat16")
    ours, expected = load_pretrained(folder), load_pretrained(plain)
    for own, tensor in expected.state_dict().items():
        assert torch.equal(ours.state_dict()[own], tensor)
    assert config_from_pretrained(folder) == config_from_pretrained(plain)
    config = resolve(
        HuggingFaceModel(config=str(folder), pretrained=str(folder), max_sequence_length=16)
    )
    theirs: Any = config.build(vocab_size=20)
    start_from(config, theirs)
    state = theirs.model.state_dict()
    for own, tensor in dense.items():
        assert torch.equal(state[own], tensor.float()), own
    for number, model in enumerate((ours, theirs)):
        exported = save_pretrained(model, tmp_path / str(number), dtype="bf16")
        assert "quantization_config" not in json.loads((exported / "config.json").read_text())
        for own, tensor in load_file(exported / "model.safetensors").items():
            assert torch.equal(tensor, dense[own]), own


@pytest.mark.usefixtures("small_pieces")
def test_experts_of_gpt_oss_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    keys: dict[str, Any] = {
        "num_local_experts": 3, "num_experts_per_tok": 2, "head_dim": 16, "intermediate_size": 64,
        "hidden_size": 32, "num_hidden_layers": 1, "layer_types": ["full_attention"],
    }  # fmt: skip
    make("gpt_oss", keys).save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    expected: dict[str, torch.Tensor] = {}
    parts: dict[str, Any] = {}
    for own in ("gate_up_proj", "down_proj"):
        name = f"model.layers.0.mlp.experts.{own}"
        count, inputs, outputs = held[name].shape
        blocks = packed((count, outputs, inputs // 32, 16), 1)
        exponents = torch.randint(118, 124, blocks.shape[:-1], dtype=torch.uint8)
        parts |= {name: None, f"{name}_blocks": blocks, f"{name}_scales": exponents}
        expected[name] = convert_moe_packed_tensors(blocks, exponents, dtype=torch.bfloat16)
        one = nibbles(blocks[1, 2, 0], E2M1) * 2.0 ** (float(exponents[1, 2, 0]) - 127)
        assert torch.equal(expected[name][1, :32, 2].float(), one)
    rewrite(tmp_path, parts)
    change_config(tmp_path, quantization_config={"quant_method": "mxfp4"}, dtype="bfloat16")
    config = resolve(
        HuggingFaceModel(config=str(tmp_path), pretrained=str(tmp_path), max_sequence_length=16)
    )
    model: Any = config.build(vocab_size=20)
    start_from(config, model)
    for name, tensor in expected.items():
        assert torch.equal(model.model.state_dict()[name], tensor.float()), name
    rewrite(tmp_path, {f"{name}_scales": torch.zeros(1, dtype=torch.uint8)})
    with pytest.raises(
        SetpointError, match=r"down_proj_scales is \(1,\), and .*_blocks is \(3, 32"
    ):
        start_from(config, model)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = directory(tmp_path / "model", **SIZES)
    quantize_files(folder, "fp8")
    name = "model.layers.0.mlp.up_proj.weight"
    scales = load_file(folder / "model.safetensors")[f"{name}_scale_inv"]
    rewrite(folder, {f"{name}_scale_inv": scales[:2]})
    with pytest.raises(RunError) as caught:
        load_pretrained(folder)
    assert f"{folder} holds weights that are quantized otherwise than" in str(caught.value)
    assert f"{name}_scale_inv is (2, 4), which fits no blocks of {name} (96, 64)" in str(
        caught.value
    )
    assert "those of 32 x 16 need (3, 4)" in str(caught.value)
    rewrite(folder, {f"{name}_scale_inv": None})  # type: ignore[dict-item]
    with pytest.raises(RunError, match=rf"{name} \(F8_E4M3\) has no {name}_scale_inv beside it"):
        load_pretrained(folder)
    for keys, said in (
        ({"quant_method": "gptq"}, r"quant_method = 'gptq' .* Valid: fp8 \(.*; mxfp4 .*; modelopt"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, r"format = 'marlin-24'"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "Valid: load_in_4bit"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "Valid: NVFP4, FP8"),
    ):
        change_config(folder, quantization_config=keys)
        with pytest.raises(SetpointError, match=said):
            config_from_pretrained(folder)
        with pytest.raises(SetpointError, match=said):
            dense_tensors(folder)
