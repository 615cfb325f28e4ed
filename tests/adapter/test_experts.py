"""Quantized packed experts: each is what it would be as a module by itself, wherever it lies."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from setpoint.adapter.config import FP8, NF4, NVFP4, Int8, LoRA, Noise, Quantization
from setpoint.adapter.low_rank import adapt, merge_all
from setpoint.adapter.quantized_weight import QuantizedExperts, noise_of, quantize_base
from setpoint.adapter.targets import sites_of
from setpoint.config import resolve
from setpoint.model.build import materialize, skeleton
from setpoint.model.initialize import initialize
from setpoint.model.moe.config import MoE
from setpoint.model.pretrained.config_json import read_config
from setpoint.model.pretrained.fill import weights_of
from setpoint.model.pretrained.save_pretrained import save_pretrained
from setpoint.train.build.adapter import adapter_rules, start_magnitudes
from setpoint.train.build.job_parameters import trained_parameters

from .models import WORDS, base_model, loss_of, model_config, tokens

NOISE = Noise(alpha=0.5)
CONFIGS: tuple[Quantization, ...] = (
    NF4(group_size=8, noise=NOISE),
    NF4(group_size=8, double=False),
    Int8(),
    Int8(group_size=8, noise=NOISE),
    FP8(group_size=8, noise=NOISE),
    NVFP4(group_size=8, noise=NOISE),
)
NAMES = ("nf4", "nf4-single", "int8", "int8-blocks", "fp8", "nvfp4")


def built(config: Quantization, packed: bool, **changes: Any) -> Any:
    """A model with experts on a quantized base, whose attention has an adapter."""
    section = model_config("moe", moe=MoE(experts=4, top_k=2, packed=packed, **changes))
    model = skeleton(section, WORDS)
    adapter = LoRA(rank=2, b_std=0.1, targets=("attention",), quantize=config)
    adapt(resolve(adapter), model, trained_parameters(model))
    materialize(model, "cpu", torch.float32)
    initialize(model, 1, adapter_rules(model))
    start_magnitudes(model)
    return model


def gradients(model: Any) -> dict[str, Tensor]:
    loss_of(model, tokens()).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_packed_experts_are_quantized_as_unpacked_ones(config: Quantization) -> None:
    packed, unpacked = built(config, True), built(config, False)
    for name in ("gate", "up", "down"):
        held = packed.layers["1"].feed_forward.experts.quantized[name]
        for expert in range(4):
            alone = getattr(unpacked.layers["1"].feed_forward.experts[str(expert)], name).quantized
            assert alone.described.keys() == held.described.keys()
            for part in alone.described:
                assert torch.equal(getattr(held, part)[expert], getattr(alone, part)), part
    found, expected = gradients(packed), gradients(unpacked)
    assert found and found.keys() == expected.keys()
    for name, each in expected.items():
        torch.testing.assert_close(found[name], each, rtol=1e-5, atol=1e-7, msg=name)
    # The noise of the next step is another one, of each expert its own.
    for model in (packed, unpacked):
        noise = noise_of(model)
        if noise is not None:
            noise.step = 1
    later = loss_of(packed, tokens()).item()
    assert later == pytest.approx(loss_of(unpacked, tokens()).item(), rel=1e-6)
    assert (later == loss_of(packed.eval(), tokens()).item()) == (config.noise is None)


def test_grouped_products_take_quantized_experts() -> None:
    looped, grouped = (
        built(NF4(group_size=8), True, implementation=way) for way in ("loop", "grouped")
    )
    expected = gradients(looped)
    for name, each in gradients(grouped).items():
        torch.testing.assert_close(each, expected[name], rtol=1e-5, atol=1e-7, msg=name)


def test_experts_are_read_and_quantized_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = model_config("moe", moe=MoE(experts=4, top_k=2), qk_norm=True, vocab_size=WORDS)
    dense: Any = base_model(section)
    vars(dense)["config"] = section
    save_pretrained(dense, tmp_path)
    sizes: list[int] = []
    put = QuantizedExperts.put

    def counted(held: QuantizedExperts, full: Tensor, first: int = 0, again: bool = False) -> None:
        sizes.append(len(full))
        put(held, full, first, again)

    monkeypatch.setattr(QuantizedExperts, "put", counted)
    config = resolve(NF4(group_size=8))
    read, outline = skeleton(section, WORDS), skeleton(section, WORDS)
    sites = [site for site in sites_of(trained_parameters(read)) if site.form == "experts"]
    quantize_base(config, read, sites, 1)
    weights = weights_of(tmp_path, read_config(tmp_path)[1], outline, section)
    weights.fill(read, device="cpu", dtype=torch.float32)
    assert sizes == [1] * (2 * 3 * 4)
    quantize_base(config, dense, sites, 1)
    expected = dense.state_dict()
    assert read.state_dict().keys() == expected.keys()
    assert all(torch.equal(each, expected[name]) for name, each in read.state_dict().items())


def test_merged_experts_are_dense_again() -> None:
    model = built(NVFP4(group_size=8), True).eval()
    with torch.no_grad():
        expected = model(tokens())
        merge_all(model)
        torch.testing.assert_close(model(tokens()), expected, rtol=1e-5, atol=1e-5)
    names = {name for name, _ in model.named_parameters()}
    assert "layers.1.feed_forward.experts.up" in names
    assert not any("quantized" in name for name in names)
