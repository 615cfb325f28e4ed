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
from setpoint.model.pretrained.config_json import (
    check_directory,
    config_from_keys,
    differences,
    family_for,
    write_config,
)
from setpoint.model.pretrained.families import FAMILIES
from setpoint.presets.deepseek import deepseek_v3

from ...support.snapshots import compare, refusals, refused
from .theirs import BASE, GEMMA, LLAMA3, MOE, YARN

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128,
}  # fmt: skip
# As the first files of these models were: by transformers 4, with all that they had then.
CONFIGS = Path(__file__).parent / "configs"
OLD = {path.stem: json.loads(path.read_text()) for path in sorted(CONFIGS.iterdir())}
DEEPSEEK_V3 = OLD.pop("deepseek_v3")  # of deepseek-ai/DeepSeek-V3-Base


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


# Keys of the family, the one that is wrong, and a value that no such file should have.
WRONG: list[tuple[dict[str, Any], str, Any]] = [
    ({}, "architectures", -1),
    ({}, "model_type", ["llama"]),
    ({}, "hidden_act", []),
    ({}, "num_hidden_layers", 10**30),
    ({}, "rms_norm_eps", float("nan")),
    ({}, "rope_theta", 10**400),
    ({}, "rope_parameters", {"rope_theta": [], "rope_type": "default"}),
    ({}, "rope_parameters", {"rope_type": [1]}),
    ({}, "rope_parameters", {**YARN, "original_max_position_embeddings": 0}),
    ({}, "rope_parameters", {**LLAMA3, "original_max_position_embeddings": float("inf")}),
    (MOE, "mlp_only_layers", ["a"]),
    (GEMMA, "layer_types", [[], [], []]),
    (GEMMA, "rope_parameters", {"full_attention": 3}),
    (GEMMA, "rope_scaling", "abc"),
]
KINDS = {id(MOE): "qwen3_moe", id(GEMMA): "gemma3_text"}
HEADS = {"qwen3_moe": "Qwen3MoeForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}


def test_a_wrong_value_in_config_json_is_named(tmp_path: Path) -> None:
    for keys, name, value in WRONG:
        kind = KINDS.get(id(keys), "llama")
        described: dict[str, Any] = {
            **BASE,
            **keys,
            "model_type": kind,
            "architectures": [HEADS.get(kind, "LlamaForCausalLM")],
        }
        (tmp_path / "config.json").write_text(json.dumps(described))
        config_from_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({**described, name: value}))
        with refused():
            config_from_pretrained(tmp_path)
