import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import SetpointError, resolve
from setpoint.model import config_from_pretrained
from setpoint.model.attention.config import LinearScaling, Llama3Scaling, YarnScaling
from setpoint.model.config import HuggingFaceConfig, TransformerConfig
from setpoint.model.huggingface.architecture import architecture, config_keys
from setpoint.model.pretrained.check_pretrained import check_directory
from setpoint.model.pretrained.config_json import (
    config_from_keys,
    differences,
    family_for,
    write_config,
)
from setpoint.model.pretrained.families import FAMILIES
from setpoint.presets.deepseek import deepseek_v3

from ...support.snapshots import compare, refusals

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}
# As the first files of these models were: by transformers 4, with all that they had then.
OLD: dict[str, dict[str, Any]] = {
    "llama": {
        **LLAMA,
        "_name_or_path": "somewhere",
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0",
        "use_cache": True,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "bos_token_id": 2,
        "cache_implementation": "hybrid",
        "eos_token_id": [1, 106],
        "final_logit_softcapping": None,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 8,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 16,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 32,
        "sliding_window_pattern": 6,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.50.0.dev0",
        "use_cache": True,
        "vocab_size": 100,
    },
    "gpt2": {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "bos_token_id": 99,
        "embd_pdrop": 0.1,
        "eos_token_id": 99,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2",
        "n_ctx": 128,
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 128,
        "n_special": 0,
        "predict_special_tokens": True,
        "resid_pdrop": 0.1,
        "summary_activation": None,
        "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 100,
    },
    "llama4": {
        **LLAMA,
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "num_hidden_layers": 8,
        "attention_bias": False,
        "attention_chunk_size": 64,
        "attention_dropout": 0.0,
        "attn_scale": 0.1,
        "attn_temperature_tuning": True,
        "cache_implementation": "hybrid",
        "floor_scale": 32,
        "for_llm_compression": False,
        "head_dim": 16,
        "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 192,
        "moe_layers": [1, 3, 5, 7],
        "no_rope_layers": [],
        "num_experts_per_tok": 1,
        "num_local_experts": 4,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 16.0,
            "high_freq_factor": 1.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 64,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
        "use_qk_norm": True,
    },
    "qwen3 moe": {
        **LLAMA,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "decoder_sparse_step": 1,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "qkv_bias": False,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 0,
        "sliding_window": None,
        "use_qk_norm": True,
        "use_sliding_window": False,
    },
}


# config.json of deepseek-ai/DeepSeek-V3-Base.
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "initializer_range": 0.02,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


def read(folder: Path, keys: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(keys))
    return config_from_pretrained(folder)


@pytest.mark.parametrize("case", OLD)
def test_files_of_transformers_4_mean_what_5_makes_of_them(case: str, tmp_path: Path) -> None:
    import transformers

    old = read(tmp_path, OLD[case])
    kind = OLD[case]["model_type"]
    assert family_for(old).model_type == kind
    transformers.AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "new")
    written = json.loads((tmp_path / "new/config.json").read_text())
    assert ("rope_parameters" in written) == (kind != "gpt2")
    assert config_from_pretrained(tmp_path / "new") == old


# Keys without which the configs of transformers describe no model, or none that we take.
NEEDED = {"deepseek_v2": {"num_experts_per_tok": 6}, "glm4_moe": {"head_dim": 128}}


@pytest.mark.parametrize("kind", FAMILIES)
def test_absent_keys_have_the_values_of_transformers(kind: str) -> None:
    """Including those that matter in training only, such as the weight of a balance loss."""
    import transformers

    family, needed = FAMILIES[kind], NEEDED.get(kind, {})
    defaults: dict[str, Any] = transformers.AutoConfig.for_model(kind, **needed).to_dict()
    keys = {**json.loads(json.dumps(defaults)), "architectures": [family.architecture]}
    whole = config_from_keys(keys, Path("whole"))[0]
    read = 0
    for name in keys.keys() - needed.keys() - {"model_type"}:
        rest = {key: value for key, value in keys.items() if key != name}
        try:
            assert config_from_keys(rest, Path("rest"))[0] == whole, name
        except SetpointError as error:  # what it asks for is not a default
            assert f"{name}: is missing" in str(error)
        else:
            read += 1
    assert read > 10


def test_fields_of_a_file_of_transformers_4(tmp_path: Path) -> None:
    llama = read(tmp_path, OLD["llama"])
    assert llama.rope_base == 500_000.0
    assert llama.rope_scaling == Llama3Scaling(factor=8.0, original_length=32)
    gemma = read(tmp_path, OLD["gemma3"])
    assert gemma.attention_pattern == ("sliding",) * 5 + ("full",)
    assert (gemma.rope_base, gemma.rope_base_sliding) == (1e6, 1e4)
    assert (gemma.embedding_scale, gemma.norm_placement, gemma.tie_embeddings) == (8, "both", True)


def test_the_preset_of_deepseek_v3_is_the_published_model(tmp_path: Path) -> None:
    preset = resolve(deepseek_v3()).model
    assert isinstance(preset, TransformerConfig)
    published = read(tmp_path, DEEPSEEK_V3)
    assert differences(preset, published) == []
    assert published.attention_scale == pytest.approx(preset.attention_scale, rel=1e-12)
    keys = write_config(preset, family_for(preset), vocab_size=129280, dtype="bfloat16")
    for name in ("rope_scaling", "n_group", "topk_group", "kv_lora_rank", "num_key_value_heads"):
        wanted = DEEPSEEK_V3[name]
        if name == "rope_scaling":
            wanted = {**wanted, "rope_type": wanted["type"], "truncate": True}
            wanted.pop("type")
        assert keys[name] == wanted


RULES: list[tuple[dict[str, Any], Any]] = [
    ({"type": "linear", "factor": 2}, LinearScaling(factor=2.0)),
    ({"rope_type": "default"}, None),
    (
        {"rope_type": "yarn", "original_max_position_embeddings": 32},
        YarnScaling(factor=4.0, original_length=32),
    ),
    (
        {"type": "yarn", "factor": 2.0, "mscale": 2.0, "mscale_all_dim": 1.0},
        YarnScaling(
            factor=2.0,
            original_length=128,
            attention_factor=1.1386294361119891 / 1.0693147180559945,
        ),
    ),
]


@pytest.mark.parametrize(("rules", "wanted"), RULES, ids=[str(rules) for rules, _ in RULES])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rules_for_positions(key: str, rules: dict[str, Any], wanted: Any, tmp_path: Path) -> None:
    assert read(tmp_path, {**LLAMA, key: rules}).rope_scaling == wanted


def test_check_names_what_trains_a_family_with_other_layers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_next"}))
    (problem,) = check_directory(
        resolve(TransformerConfig(max_sequence_length=8, pretrained=str(tmp_path)))
    )
    assert problem.message.endswith("'qwen3_next', which needs gated delta nets")
    assert not problem.valid
    assert problem.hint == '`type = "huggingface"` trains all models of transformers.'


def test_no_torch_is_needed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    script = (
        "import sys, setpoint.model as m; m.config_from_pretrained('.');"
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


# Changes of a file that must not be taken for the model that it would be without them.
REFUSED: dict[str, dict[str, Any]] = {
    "an unknown architecture": {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
    "layers that the transformer lacks": {
        "model_type": "qwen3_next",
        "architectures": ["Qwen3NextForCausalLM"],
    },
    "an image encoder": {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text"},
        "vision_config": {"model_type": "siglip_vision_model"},
    },
    "no kind": {"model_type": None},
    "a head for another task": {"architectures": ["LlamaForSequenceClassification"]},
    "keys that nobody knows": {"rope_interleaved": True, "use_flux": 3, "use_mrope": False},
    "a null that nobody knows is fine, a list is not": {"nothing": None, "something": [1]},
    "an activation": {"hidden_act": "quick_gelu"},
    "a width that is missing": {"hidden_size": ..., "num_hidden_layers": "two"},
    "numbers that are none": {"rms_norm_eps": "1e-5", "tie_word_embeddings": "no"},
    "quantized": {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    "quantized in part": {"quantization_config": {"modules_to_not_convert": ["lm_head"]}},
    "code of its own": {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}},
    "an encoder": {"is_encoder_decoder": True, "add_cross_attention": True},
    "a rule for positions": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "rules for positions with more keys": {"rope_scaling": {"type": "linear", "factor": 2, "x": 1}},
    "rules for positions without a factor": {"rope_scaling": {"rope_type": "linear"}},
    "rules for positions out of range": {"rope_scaling": {"type": "linear", "factor": 0.5}},
    "part of each head rotated": {"rope_parameters": {"partial_rotary_factor": 0.5}},
    "contradictions": {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e5}},
    "heads that do not divide": {"num_attention_heads": 5, "num_key_value_heads": 3},
    "odd heads": {"head_dim": 7},
}
OF_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral with kinds of layers": ("mistral", {"layer_types": ["full_attention"] * 2}),
    "qwen3 with other kinds": ("qwen3", {"layer_types": ["linear_attention", "full_attention"]}),
    "qwen3 with too few kinds": ("qwen3", {"layer_types": ["full_attention"]}),
    "qwen3 with windows of no size": (
        "qwen3",
        {"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": False},
    ),
    "qwen3_moe with dense layers between": ("qwen3_moe", {"mlp_only_layers": [1]}),
    "qwen3_moe with more choices than experts": ("qwen3_moe", {"num_experts": 4}),
    "qwen3_moe with shared experts": ("qwen3_moe", {"shared_expert_intermediate_size": 24}),
    "gemma3 with a cap that is not applied": ("gemma3_text", {"attn_logit_softcapping": 50.0}),
    "gemma3 that sees ahead": ("gemma3_text", {"use_bidirectional_attention": True}),
    "gpt2 scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "n_ctx": 7}),
}


def test_what_changes_the_model_is_refused(tmp_path: Path) -> None:
    names = {"gemma3_text": "Gemma3ForCausalLM", "gpt2": "GPT2LMHeadModel"}
    names |= {"mistral": "MistralForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    names |= {"qwen3_moe": "Qwen3MoeForCausalLM"}
    cases = {case: {**LLAMA, **change} for case, change in REFUSED.items()}
    for case, (kind, change) in OF_OTHERS.items():
        base = OLD["gpt2"] if kind == "gpt2" else LLAMA
        cases[case] = {**base, "model_type": kind, "architectures": [names[kind]], **change}
    texts = {
        case: json.dumps({key: value for key, value in keys.items() if value is not ...})
        for case, keys in cases.items()
    }

    def read_text(text: str) -> None:
        (tmp_path / "config.json").write_text(text)
        config_from_pretrained(tmp_path)

    refused = {
        case: partial(read_text, text)
        for case, text in {**texts, "no JSON": "{", "a list": "[]"}.items()
    }
    compare("model/pretrained_not_read", refusals(refused, tmp_path))


def test_infinite_numbers_are_read_as_transformers_writes_them(tmp_path: Path) -> None:
    import transformers

    kind = transformers.CONFIG_MAPPING["falcon_h1"]
    kind(time_step_limit=(0.0, math.inf)).save_pretrained(tmp_path)
    config = HuggingFaceConfig(config=str(tmp_path))
    assert architecture(config, config_keys(config), {}).time_step_limit[1] == math.inf
