"""Runs with an adapter: generation and evaluation, export to PEFT and merged, and the way back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from setpoint.adapter.low_rank import LowRank, adapters_of, merge_all
from setpoint.config import ConfigError
from setpoint.config.composition import compose
from setpoint.infer.adopt import complete, verify_job
from setpoint.infer.config import Inference
from setpoint.infer.inference import infer
from setpoint.infer.loaded_model import load
from setpoint.model.pretrained.save_pretrained import save_pretrained
from setpoint.train.run import train

from ..model.huggingface_families import family_job
from ..model.pretrained.theirs import saved
from ..support.cases import few
from ..support.snapshots import refused
from ..train.small import small_job

LLAMA = ("model.dim=32", "model.heads=4", "model.kv_heads=2", "model.layers=2", "model.dropout=0")
GPT2 = (
    "model.dim=32", "model.heads=4", "model.layers=2", "model.dropout=0", "model.norm=layer_norm",
    "model.positions=learned", "model.activation=gelu_tanh", "model.qkv_bias=true",
    "model.attention_output_bias=true", "model.ffn_bias=true", "model.tie_embeddings=true",
)  # fmt: skip
LORA = "adapter={type: lora, rank: 2, b_std: 0.5}"
ADAPTERS = {
    "dora by pattern": (*LLAMA, "adapter={type: dora, rank: 4, b_std: 0.5, ranks: [{pattern: "
                        "query, rank: 2, alpha: 3}]}"),
    "fused split": (*LLAMA, "model.merge_qkv=true",
                    "adapter={type: lora, rank: 2, b_std: 0.5, fused_projections: split, "
                    "exclude: [down]}"),
    "fused whole": (*LLAMA, "model.merge_qkv=true", "adapter={type: lora, rank: 2, b_std: 0.5}"),
    "neighbouring pairs": (*LLAMA, "model.norm_placement=both", "model.rope_dim=4",
                           "model.qkv_bias=true", "adapter={type: dora, rank: 2, b_std: 0.5}"),
    "gpt2": (*GPT2, "adapter={type: lora, rank: 2, b_std: 0.5, train: [norm.weight]}"),
    "embedding": (*LLAMA, "adapter={type: lora, rank: 2, b_std: 0.5, train: ['^output'], "
                  "targets: ['^embedding', down]}"),
}  # fmt: skip


def trained(folder: Path, *flags: str) -> Path:
    run = folder / "run"
    train(small_job(folder, "evaluation=null", "duration=2 steps", *flags), directory=run)
    return run


def asked(run: Path, *flags: str) -> Inference:
    return compose(Inference, flags=[f"weights.path={run}", *flags]).resolve()


def exported(run: Path, path: Path, *flags: str) -> Path:
    found = infer(asked(run, f"export.path={path}", *flags)).exported
    assert found is not None
    return found


def without_update(run: Path) -> nn.Module:
    """The model of a run without the update of its adapter."""
    apart = load(complete(asked(run, "weights.merge_adapter=false", "generation={prompts: [a]}")))
    for module in apart.model.modules():
        for name, adapter in list(module.named_children()):
            if name == "adapter":
                for parameter in adapter.parameters():
                    parameter.data.zero_()
                if isinstance(adapter, LowRank) and adapter.magnitude is not None:
                    adapter.magnitude.data.copy_(adapter.lengths(module.get_parameter("weight")))
    merge_all(apart.model)
    return apart.model


def model_of(base: Path, adapter: Path | None = None) -> Any:
    """The model of files by transformers, and of an adapter by PEFT."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(base)
    return model if adapter is None else PeftModel.from_pretrained(model, str(adapter))


def logits_of(model: Any) -> torch.Tensor:
    tokens = torch.randint(0, 200, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(tokens).logits


def equal_in_peft(run: Path, base: Path, folder: Path) -> tuple[Path, Path]:
    """Export merged and to PEFT, where both give the same logits, and other ones than the base."""
    merged = exported(run, folder / "merged")
    adapter = exported(run, folder / "peft", "export.adapter=true")
    whole, adapted = logits_of(model_of(merged)), logits_of(model_of(base, adapter))
    assert (adapted - whole).norm() <= 1e-5 * whole.norm()
    assert (whole - logits_of(model_of(base))).abs().max() > 0.01
    return merged, adapter


def written(run: Path, folder: Path) -> dict[str, Any]:
    """The settings of an adapter that is equal in PEFT."""
    base = save_pretrained(without_update(run), folder / "base")
    _, adapter = equal_in_peft(run, base, folder)
    return json.loads((adapter / "adapter_config.json").read_text())


@pytest.mark.parametrize("name", few(ADAPTERS, ["dora by pattern", "fused split", "gpt2"]))
def test_peft_loads_what_is_written_and_equals_the_merged_model(tmp_path: Path, name: str) -> None:
    settings = written(trained(tmp_path, *ADAPTERS[name]), tmp_path)
    assert settings["use_dora"] == ("dora" in name)
    assert settings["fan_in_fan_out"] == (name == "gpt2")


FOREIGN = {
    "gpt_oss": "lora, targets: [q_proj, experts.gate_up_proj, down_proj], ranks: [{pattern: "
               "down_proj, rank: 3, alpha: 5}], train: [mlp.router]",
    "mixtral": "lora, rank: 2",
    "llama4_text": "lora, dropout: 0.1",
    "deepseek_v3": "lora, rank: 2",
    "qwen3_next": "lora, rank: 2, train: [norm.weight]",
    "gpt2": "dora",
    "gemma2": "lora, train: [embed_tokens]",
}  # fmt: skip


# It looks for patterns of parameters among modules.
@pytest.mark.filterwarnings("ignore:The following .*_pattern keys did not:RuntimeWarning")
@pytest.mark.parametrize("kind", few(FOREIGN, ["gpt_oss"]))
def test_peft_loads_adapters_of_the_models_of_transformers(tmp_path: Path, kind: str) -> None:
    adapter = f"adapter={{type: {FOREIGN[kind]}, b_std: 0.5}}"
    run = train(family_job(tmp_path, kind, adapter, "duration=2 steps")).directory
    settings = written(run, tmp_path)
    assert bool(settings.get("target_parameters")) == (kind not in ("gpt2", "gemma2"))


TIED = {
    "llama": (*LLAMA, "model.tie_embeddings=true",
              "adapter={type: lora, rank: 2, b_std: 0.5, train: ['^embedding']}"),
    "gpt2": (*GPT2, "adapter={type: dora, rank: 2, b_std: 0.5, train: ['^embedding', norm]}"),
}  # fmt: skip


@pytest.mark.parametrize("name", few(TIED, ["gpt2"]))
def test_a_tied_embedding_that_is_trained_is_saved_for_both_of_its_uses(
    tmp_path: Path, name: str
) -> None:
    shape = [flag for flag in TIED[name] if flag.startswith("model.")]
    base = exported(trained(tmp_path / "first", *shape), tmp_path / "base")
    run = trained(tmp_path, *TIED[name], f"model.pretrained={base}", "optimizer.lr=0.02")
    merged, adapter = equal_in_peft(run, base, tmp_path)
    model_of(base, adapter).merge_and_unload().save_pretrained(tmp_path / "unloaded")
    again = logits_of(model_of(tmp_path / "unloaded"))
    torch.testing.assert_close(again, logits_of(model_of(merged)), rtol=1e-5, atol=1e-5)


def test_merged_and_separate_adapters_give_the_same_loss(tmp_path: Path) -> None:
    run = trained(tmp_path, *LLAMA, "adapter={type: lora, rank: 2, b_std: 0.5}")
    found = [
        infer(asked(run, "evaluation.sides=[held_out]", f"weights.merge_adapter={each}")).scores
        for each in ("true", "false")
    ]
    assert found[0]["held_out"].loss == pytest.approx(found[1]["held_out"].loss, rel=1e-5)
    job = complete(asked(run, "generation={prompts: [a]}"))
    assert not adapters_of(load(job).model)


def test_exports_that_are_impossible_are_refused(tmp_path: Path) -> None:
    run = trained(tmp_path)
    with refused(ConfigError):
        infer(asked(run, f"export={{path: {tmp_path / 'a'}, adapter: true}}"))
    moe = trained(
        tmp_path / "moe",
        "model.qk_norm=true",
        "model.moe={experts: 2}",
        "adapter={type: lora, rank: 2}",
    )
    with refused():
        exported(moe, tmp_path / "peft", "export.adapter=true")
    assert not (tmp_path / "peft").exists()
    merges = ("weights.merge_adapter=true", "export.path=hf")
    with refused(ConfigError):
        infer(asked(moe, *merges, "export.adapter=true"))
    ranks = ("parallel.world_size=2", "parallel.tensor=2")
    (problem,) = verify_job(complete(asked(moe, *merges, *ranks)), ["files"]).problems
    assert problem.path == "weights.merge_adapter" and "before they are read" in problem.message


def test_exports_and_adapters_have_the_family_of_the_base(tmp_path: Path) -> None:
    """A Phi 3 would be a Llama as well, whose matrices are not fused."""
    keys = {"vocab_size": 257, "num_key_value_heads": 4, "rms_norm_eps": 1e-6}
    base = saved(tmp_path / "base", "phi3", **keys)
    shape = ("dim=32", "layers=3", "heads=4", "ffn_dim=48", "norm_eps=1e-6", "dropout=0")
    started = (*(f"model.{flag}" for flag in shape), f"model.pretrained={base}")
    run = trained(tmp_path / "first", *started, LORA)
    merged, _ = equal_in_peft(run, base, tmp_path)
    assert json.loads((merged / "config.json").read_text())["model_type"] == "phi3"
