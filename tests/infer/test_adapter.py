"""Runs with an adapter: generation and evaluation, export to PEFT and merged, and the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.adapter.low_rank import adapters_of
from setpoint.config import ConfigError, SetpointError
from setpoint.config.composition import compose
from setpoint.infer.adopt import complete
from setpoint.infer.config import Inference
from setpoint.infer.load import load
from setpoint.infer.run import infer
from setpoint.train.run import train

from ..train.small import small_job

LLAMA = ("model.dim=32", "model.heads=4", "model.kv_heads=2", "model.layers=2", "model.dropout=0")
GPT2 = (
    "model.dim=32", "model.heads=4", "model.layers=2", "model.dropout=0", "model.norm=layer_norm",
    "model.positions=learned", "model.activation=gelu_tanh", "model.qkv_bias=true",
    "model.attention_output_bias=true", "model.ffn_bias=true", "model.tie_embeddings=true",
)  # fmt: skip
ADAPTERS = {
    "dora by pattern": (*LLAMA, "adapter={type: dora, rank: 4, b_std: 0.5, ranks: [{pattern: "
                        "query, rank: 2, alpha: 3}]}"),
    "fused split": (*LLAMA, "model.merge_qkv=true",
                    "adapter={type: lora, rank: 2, b_std: 0.5, fused: split, exclude: [down]}"),
    "fused whole": (*LLAMA, "model.merge_qkv=true", "adapter={type: lora, rank: 2, b_std: 0.5}"),
    "gpt2": (*GPT2, "adapter={type: lora, rank: 2, b_std: 0.5, train: [norm.weight]}"),
    "embedding": (*LLAMA, "adapter={type: lora, rank: 2, b_std: 0.5, train: ['^output'], "
                  "targets: ['^embedding', down]}"),
}  # fmt: skip


def trained(folder: Path, *flags: str) -> Path:
    run = folder / "run"
    train(small_job(folder, "evaluation=null", "duration=2 steps", *flags), run)
    return run


def asked(run: Path, *flags: str) -> Inference:
    return compose(Inference, flags=[f"weights.path={run}", *flags]).resolve()


def exported(run: Path, path: Path, *flags: str) -> Path:
    found = infer(asked(run, f"export.path={path}", *flags)).exported
    assert found is not None
    return found


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("name", ADAPTERS)
def test_peft_loads_what_is_written_and_equals_the_merged_model(tmp_path: Path, name: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run = trained(tmp_path, *ADAPTERS[name])
    merged = exported(run, tmp_path / "merged")
    theirs = exported(run, tmp_path / "peft", "export.adapter=true")
    # The base: what the merged model is without the update of the adapter.
    apart = load(complete(asked(run, "weights.merge_adapter=false", "generation={prompts: [a]}")))
    for module in apart.model.modules():
        for child, adapter in list(module.named_children()):
            if child == "adapter":
                for parameter in adapter.parameters():
                    parameter.data.zero_()
                if hasattr(adapter, "magnitude") and adapter.magnitude is not None:
                    adapter.magnitude.data.copy_(adapter.lengths(module.weight))
    from setpoint.adapter.merge import merge_all
    from setpoint.model.pretrained.save import save_pretrained

    merge_all(apart.model)
    base = save_pretrained(apart.model, tmp_path / "base")
    tokens = torch.randint(0, 200, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = AutoModelForCausalLM.from_pretrained(merged)(tokens).logits
        plain: Any = AutoModelForCausalLM.from_pretrained(base)
        without = plain(tokens).logits.clone()
        adapted = PeftModel.from_pretrained(plain, str(theirs))(tokens).logits
    assert (whole - without).abs().max() > 0.01
    torch.testing.assert_close(adapted, whole, rtol=1e-5, atol=1e-5)
    settings = json.loads((theirs / "adapter_config.json").read_text())
    assert settings["use_dora"] == ("dora" in name)
    assert settings["fan_in_fan_out"] == (name == "gpt2")


def test_merged_and_apart_say_the_same(tmp_path: Path) -> None:
    run = trained(tmp_path, *LLAMA, "adapter={type: lora, rank: 2, b_std: 0.5}")
    found = [
        infer(asked(run, "evaluation.sides=[held_out]", f"weights.merge_adapter={each}")).scores
        for each in ("true", "false")
    ]
    assert found[0]["held_out"].loss == pytest.approx(found[1]["held_out"].loss, rel=1e-5)
    job = complete(asked(run, "generation={prompts: [a]}"))
    assert not adapters_of(load(job).model)


def test_what_does_not_go_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path)
    with pytest.raises(ConfigError, match=r"export\.adapter[\s\S]*there is no adapter"):
        infer(asked(run, f"export={{path: {tmp_path / 'a'}, adapter: true}}"))
    with pytest.raises(ConfigError, match="has no effect: there is no adapter"):
        infer(asked(run, "weights.merge_adapter=false", "generation={prompts: [a]}"))
    moe = trained(
        tmp_path / "moe",
        "model.qk_norm=true",
        "model.moe={experts: 2}",
        "adapter={type: lora, rank: 2}",
    )
    with pytest.raises(SetpointError, match="no place for .* packed experts"):
        exported(moe, tmp_path / "peft", "export.adapter=true")
    assert not (tmp_path / "peft").exists()
