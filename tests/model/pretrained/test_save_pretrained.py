import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.config import resolve
from setpoint.data.config import TokenIds
from setpoint.data.tokenizer import IdTokenizer
from setpoint.model import load_pretrained, save_pretrained
from setpoint.model.attention.config import MLA, YarnScaling
from setpoint.model.config import LayerNormConfig, MuP, RMSNormConfig
from setpoint.model.moe.config import MoE, SigmoidTopK, SoftmaxTopK
from setpoint.model.pretrained.save_pretrained import ends_of

from ...support.snapshots import compare, refusals, refused
from .ours import directory, model

LATENT: dict[str, Any] = {
    "mla": MLA(query_rank=8, kv_rank=6, rope_head_dim=4, nope_head_dim=4, value_head_dim=4),
    "moe": MoE(experts=4, expert_dim=8, first_dense=1, shared_experts=1, router=SigmoidTopK()),
    "attention_scale": 0.3,
    "norm_eps": 1e-6,
}
GEMMA: dict[str, Any] = {
    "qk_norm": True,
    "norm": RMSNormConfig(zero_centered=True),
    "norm_placement": "both",
    "activation": "geglu_tanh",
    "embedding_scale": 4.0,
    "attention_pattern": ("sliding", "full"),
    "sliding_window": 5,
    "rope_base_sliding": 100.0,
    "tie_embeddings": True,
}
# Fields of ours, and the class that transformers makes of them.
OURS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, "LlamaForCausalLM"),
    "heads that do not divide": ({"dim": 20, "heads": 3, "head_dim": 8}, "MistralForCausalLM"),
    "padded vocabulary": ({"vocab_size": None, "vocab_multiple_of": 64}, "LlamaForCausalLM"),
    "window": ({"attention_pattern": ("sliding",), "sliding_window": 3}, "MistralForCausalLM"),
    "windows": (
        {"qkv_bias": True, "attention_pattern": ("full", "sliding"), "sliding_window": 3},
        "Qwen2ForCausalLM",
    ),
    # Phi 3 rotates a part of each head, too, but has no such scaling in transformers.
    "a part of each head, stretched": (
        {"rope_dim": 4, "rope_scaling": YarnScaling(factor=4.0, original_length=8)},
        "GlmForCausalLM",
    ),
    "latent attention with a scale of its own": (
        {**LATENT, "rope_scaling": YarnScaling(factor=4.0, original_length=8)},
        "DeepseekV3ForCausalLM",
    ),
    "norms of queries": ({"qk_norm": True, "merge_qkv": True}, "Qwen3ForCausalLM"),
    "experts": (
        {"qk_norm": True, "moe": MoE(experts=4, expert_dim=8, first_dense=1, packed=False)},
        "Qwen3MoeForCausalLM",
    ),
    "norms behind": (GEMMA, "Gemma3ForCausalLM"),
    "windows in all layers with a RoPE base of their own": (
        {**GEMMA, "attention_pattern": ("sliding",)},
        "Gemma3ForCausalLM",
    ),
    "one RoPE base of windows in all layers": (
        {"attention_pattern": ("sliding",), "sliding_window": 3, "rope_base_sliding": 10_000.0},
        "MistralForCausalLM",
    ),
    "learned positions": (
        {
            "positions": "learned",
            "norm": LayerNormConfig(),
            "activation": "gelu",
            "ffn_bias": True,
            "qkv_bias": True,
            "attention_output_bias": True,
        },
        "GPT2LMHeadModel",
    ),
    "learned positions without biases": (
        {"positions": "learned", "norm": LayerNormConfig(bias=False), "activation": "gelu"},
        "GPT2LMHeadModel",
    ),
}


@pytest.mark.parametrize("case", OURS)
def test_transformers_loads_ours_as_the_right_class(case: str, tmp_path: Path) -> None:
    import transformers

    fields, name = OURS[case]
    ours = model(**fields)
    tokens = torch.randint(0, 20, (2, 16), generator=torch.Generator().manual_seed(0))
    save_pretrained(ours, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert type(theirs).__name__ == name
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=0, atol=1e-5)
        assert ours(tokens).std() > 0.05


def test_a_start_of_weights_that_their_class_would_refuse_is_cut(tmp_path: Path) -> None:
    import transformers

    save_pretrained(model(init_std=1.5), tmp_path / "out")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").initializer_range == 1.0


UNWRITABLE: dict[str, dict[str, Any]] = {
    "relu squared": {"activation": "relu_squared"},
    "norms behind only": {"norm_placement": "post"},
    "layer norm with rotary positions": {"norm": LayerNormConfig(bias=False)},
    "no positions": {"positions": "none"},
    "muP": {"mup": MuP(base_dim=8)},
    "scales": {"residual_scale": 0.5, "logit_scale": 2.0, "qk_norm": True},
    "a router of another kind": {"qk_norm": True, "moe": MoE(experts=4, router=SigmoidTopK())},
    "experts that drop": {
        "qk_norm": True,
        "moe": MoE(experts=4, router=SoftmaxTopK(), capacity_factor=1.0),
    },
}


def test_what_no_family_has_is_refused_by_name(tmp_path: Path) -> None:
    save = partial(save_pretrained, path=tmp_path / "out")
    cases = {case: partial(save, model(**fields)) for case, fields in UNWRITABLE.items()}
    cases["another family"] = partial(save, model(qk_norm=True), family="llama")
    cases["no family"] = partial(save, model(), family="lama")
    compare("model/pretrained_not_written", refusals(cases))
    assert list(tmp_path.iterdir()) == []


def test_a_scale_that_positions_not_stretched_cannot_give_is_refused(tmp_path: Path) -> None:
    ours = model(**LATENT, rope_scaling=YarnScaling(factor=1.0, original_length=8))
    with refused():
        save_pretrained(ours, tmp_path / "out", family="deepseek_v3")


def test_shards_hold_the_same_and_transformers_reads_them(tmp_path: Path) -> None:
    import transformers

    whole, parts = directory(tmp_path / "whole"), directory(tmp_path / "parts", 4000)
    assert not (parts / "model.safetensors").exists()
    shards = sorted(parts.glob("model-*-of-*.safetensors"))
    index = json.loads((parts / "model.safetensors.index.json").read_text())
    assert {shard.name for shard in shards} == set(index["weight_map"].values())
    assert len(shards) > 3
    assert index["metadata"]["total_size"] == sum(
        tensor.numel() * 4 for tensor in load_pretrained(whole).parameters()
    )
    first, second = load_pretrained(whole).state_dict(), load_pretrained(parts).state_dict()
    assert first.keys() == second.keys()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(parts).state_dict()
    for name in first:
        assert first[name].shape == second[name].shape
    assert torch.equal(theirs["model.embed_tokens.weight"], second["embedding.weight"])


def test_types_are_cast_when_asked(tmp_path: Path) -> None:
    ours = model()
    save_pretrained(ours, tmp_path / "half", dtype="bf16")
    assert json.loads((tmp_path / "half/config.json").read_text())["dtype"] == "bfloat16"
    stored = load_pretrained(tmp_path / "half")
    assert {p.dtype for p in stored.parameters()} == {torch.bfloat16}
    for name, tensor in ours.state_dict().items():
        assert torch.equal(stored.state_dict()[name], tensor.bfloat16())
    wide = load_pretrained(tmp_path / "half", dtype=torch.float64)
    assert {p.dtype for p in wide.parameters()} == {torch.float64}


def test_tokenizer_files_and_special_tokens_go_along(tmp_path: Path) -> None:
    source = directory(tmp_path / "source")
    keys = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**keys, "eos_token_id": [3, 4]}))
    (source / "tokenizer.json").write_text("{}")
    (source / "generation_config.json").write_text('{"top_k": 3}')
    (source / "notes.txt").write_text("not copied")
    copy = save_pretrained(load_pretrained(source), tmp_path / "copy")
    assert sorted(path.name for path in copy.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    written = json.loads((copy / "config.json").read_text())
    assert written["eos_token_id"] == [3, 4]
    assert written["bos_token_id"] is None
    other = tmp_path / "tokenizer"
    other.mkdir()
    (other / "tokenizer.json").write_text('{"other": 1}')
    chosen = save_pretrained(source, tmp_path / "chosen", tokenizer=other)
    assert (chosen / "tokenizer.json").read_text() == '{"other": 1}'


def test_a_directory_with_files_is_left_alone_unless_said(tmp_path: Path) -> None:
    target = directory(tmp_path / "out")
    before = (target / "model.safetensors").read_bytes()
    (target / "mine.txt").write_text("mine")
    new = tmp_path / "new"
    cases = {
        "not empty": partial(save_pretrained, model(seed=1), target),
        "a file": partial(save_pretrained, model(), target / "mine.txt"),
        "no shards": partial(save_pretrained, model(), new, max_shard_size=0),
        "a dtype": partial(save_pretrained, model(), new, dtype="int8"),
        "no language model": partial(save_pretrained, torch.nn.Linear(2, 2), new),
    }
    compare("model/pretrained_not_saved", refusals(cases, tmp_path))
    assert (target / "model.safetensors").read_bytes() == before
    save_pretrained(model(seed=1), target, overwrite=True)
    assert (target / "model.safetensors").read_bytes() != before
    assert not (target / "mine.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from setpoint.model.pretrained import save_pretrained as save

    def full_disk(*arguments: object) -> None:
        (arguments[0] / "model.safetensors").write_bytes(b"half")  # type: ignore[operator]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(save, "write_tensors", full_disk)
    with refused():
        save_pretrained(model(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_ids_without_a_separator_end_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert ends_of(tmp_path, IdTokenizer(resolve(TokenIds(count=20)))) == ()
    assert ends_of(tmp_path, IdTokenizer(resolve(TokenIds(count=20, separator=19)))) == (19,)
