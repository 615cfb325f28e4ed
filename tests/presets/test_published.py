"""Presets of published models: the number of parameters, the model of transformers, the details."""

from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config.composition import compose
from setpoint.model.attention.config import Llama3Scaling
from setpoint.model.attention.selection import kind_of
from setpoint.model.config import TransformerConfig
from setpoint.model.parameters import count_parameters_of
from setpoint.model.pretrained.config_json import family_for
from setpoint.train.config import Job

LLAMA3 = {"vocab_size": 128256, "num_key_value_heads": 8, "max_position_embeddings": 131072,
          "rms_norm_eps": 1e-5}  # fmt: skip
QWEN3 = {"vocab_size": 151936, "head_dim": 128, "max_position_embeddings": 40960,
         "rms_norm_eps": 1e-6}  # fmt: skip
GPT2 = {"vocab_size": 50257, "n_positions": 1024, "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new"}  # fmt: skip
GPT_OSS = {
    "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_experts_per_tok": 4,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "attention_bias": True,
    "tie_word_embeddings": False, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
}  # fmt: skip
QWEN3_MOE = {
    **QWEN3, "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "norm_topk_prob": True, "router_aux_loss_coef": 0.001, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK = {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
    "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "n_group": 8, "topk_group": 4,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "norm_topk_prob": True,
    "max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "initializer_range": 0.006,
    "tie_word_embeddings": False,
}  # fmt: skip


def llama3(dim: int, layers: int, heads: int, ffn_dim: int, tied: bool) -> Any:
    import transformers

    return transformers.LlamaConfig(
        **LLAMA3, hidden_size=dim, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=ffn_dim, tie_word_embeddings=tied,
    )  # fmt: skip


def qwen3(dim: int, layers: int, heads: int, ffn_dim: int, tied: bool) -> Any:
    import transformers

    return transformers.Qwen3Config(
        **QWEN3, hidden_size=dim, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=ffn_dim, tie_word_embeddings=tied, num_key_value_heads=8,
    )  # fmt: skip


def gpt2(dim: int, layers: int, heads: int) -> Any:
    import transformers

    return transformers.GPT2Config(**GPT2, n_embd=dim, n_layer=layers, n_head=heads)


def gpt_oss(layers: int, experts: int) -> Any:
    import transformers

    return transformers.GptOssConfig(**GPT_OSS, num_hidden_layers=layers, num_local_experts=experts)


def of_keys(kind: str, keys: dict[str, Any]) -> Any:
    import transformers

    return transformers.AutoConfig.for_model(kind, **keys)


# What is published: parameters, or what follows from the configuration, and the configuration.
PUBLISHED: dict[str, tuple[Any, ...]] = {
    "llama3-1b": (1_235_814_400, llama3, 2048, 16, 32, 8192, True),
    "llama3-3b": (3_212_749_824, llama3, 3072, 28, 24, 8192, True),
    "llama3-8b": (8_030_261_248, llama3, 4096, 32, 32, 14336, False),
    "llama3-70b": (70_553_706_496, llama3, 8192, 80, 64, 28672, False),
    "qwen3-0-6b": (596_049_920, qwen3, 1024, 28, 16, 3072, True),
    "qwen3-1-7b": (1_720_574_976, qwen3, 2048, 28, 16, 6144, True),
    "qwen3-4b": (4_022_468_096, qwen3, 2560, 36, 32, 9728, True),
    "qwen3-8b": (8_190_735_360, qwen3, 4096, 36, 32, 12288, False),
    "qwen3-14b": (14_768_307_200, qwen3, 5120, 40, 40, 17408, False),
    "qwen3-32b": (32_762_123_264, qwen3, 5120, 64, 64, 25600, False),
    "gpt2": (124_439_808, gpt2, 768, 12, 12),
    "gpt2-medium": (354_823_168, gpt2, 1024, 24, 16),
    "gpt2-large": (774_030_080, gpt2, 1280, 36, 20),
    "gpt2-xl": (1_557_611_200, gpt2, 1600, 48, 25),
    "gpt-oss-20b": (20_914_757_184, gpt_oss, 24, 32),
    "gpt-oss-120b": (116_829_156_672, gpt_oss, 36, 128),
    "qwen3-30b-a3b": (30_532_122_624, of_keys, "qwen3_moe", QWEN3_MOE),
    # With the biases that only select: 58 layers of 256.
    "deepseek-v3": (671_026_419_200, of_keys, "deepseek_v3", DEEPSEEK),
}


def resolved(preset: str) -> tuple[Job, TransformerConfig]:
    job = compose(Job, preset).resolve()
    assert isinstance(job.model, TransformerConfig) and job.name == preset
    return job, job.model


def count(module: nn.Module) -> int:
    """Parameters, and buffers that are part of what is published."""
    parameters = sum(p.numel() for p in {id(p): p for p in module.parameters()}.values())
    return parameters + selecting(module)


def selecting(module: nn.Module) -> int:
    """The biases that only select experts."""
    ends = ("router.bias", "e_score_correction_bias")
    return sum(b.numel() for name, b in module.named_buffers() if name.endswith(ends))


@pytest.mark.parametrize("preset", PUBLISHED)
def test_the_shape_is_the_published_one(preset: str) -> None:
    import transformers

    parameters, make, *given = PUBLISHED[preset]
    config = make(*given)
    job, model = resolved(preset)
    vocab_size = job.tokenizer.build().vocab_size
    with torch.device("meta"):
        ours = model.build(vocab_size=vocab_size)
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    assert count(ours) == count(theirs) == parameters
    assert count_parameters_of(model, vocab_size).parameters == parameters - selecting(ours)
    assert model.max_sequence_length == config.max_position_embeddings
    assert model.norm_eps == getattr(config, "rms_norm_eps", 0) or config.layer_norm_epsilon
    assert model.init_std == config.initializer_range
    if preset == "qwen3-30b-a3b":  # what the name calls A3B: all but the experts left out
        assert count(ours) - 48 * 120 * 3 * 2048 * 768 == 3_353_032_704
    if preset.startswith("gpt-oss"):  # so that its weights load and export
        assert family_for(model).model_type == "gpt_oss"


def llama3_rope(factor: float) -> Llama3Scaling:
    return Llama3Scaling(
        factor=factor, low_frequency_factor=1, high_frequency_factor=4, original_length=8192
    )


# Values that no count shows, of sections as far as they are given.
DETAILS: dict[str, dict[str, Any]] = {
    **{f"llama3-{n}b": {"rope_base": 500_000, "rope_scaling": llama3_rope(32)} for n in (1, 3)},
    **{f"llama3-{n}b": {"rope_base": 500_000, "rope_scaling": llama3_rope(8)} for n in (8, 70)},
    **{
        name: {"rope_base": 1_000_000, "rope_scaling": None, "qk_norm": True}
        for name in PUBLISHED if name.startswith("qwen3-") and name != "qwen3-30b-a3b"
    },
    **{
        name: {"activation": "gelu_tanh", "positions": "learned", "dropout": 0.1,
               "embedding_dropout": 0.1, "attention_dropout": 0.1}
        for name in PUBLISHED if name.startswith("gpt2")
    },
    **{
        f"gpt-oss-{size}": {
            "moe": {"top_k": 4, "bias": True}, "attention_sinks": True, "sliding_window": 128,
            "rope_base": 150_000,
            "rope_scaling": {"type": "yarn", "factor": 32, "original_length": 4096,
                             "truncate": False},
        }
        for size in ("20b", "120b")
    },
    "qwen3-30b-a3b": {
        "moe": {"router": {"type": "softmax_top_k", "normalize": True}, "top_k": 8,
                "balance_loss": 0.001},
        "qk_norm": True, "rope_base": 1_000_000,
    },
    # The report, section 4.2. In config.json `mscale` and `mscale_all_dim` are 1: their quotient
    # scales the rotation, and the second, squared, the products of queries and keys.
    "deepseek-v3": {
        "moe": {"router": {"type": "sigmoid_top_k", "normalize": True, "bias_rate": 0.001},
                "top_k": 8, "groups": 8, "top_groups": 4, "route_scale": 2.5, "first_dense": 3,
                "shared_experts": 1, "sequence_balance_loss": 1e-4, "balance_loss": 0},
        "rope_scaling": {"type": "yarn", "factor": 40, "original_length": 4096,
                         "attention_factor": 1, "beta_fast": 32, "beta_slow": 1},
        "rope_base": 10_000, "attention_scale": pytest.approx(192**-0.5 * 1.3688879454113936**2),
    },
    # In small, as Gemma 3 is built.
    "gemma3-tiny": {
        "norm": {"type": "rms_norm", "zero_centered": True}, "norm_placement": "both",
        "qk_norm": True, "rope_base": 1_000_000, "rope_base_sliding": 10_000,
        "activation": "geglu_tanh",
    },
}  # fmt: skip
KINDS = {"gpt-oss-20b": ["sliding", "full"] * 12, "gpt-oss-120b": ["sliding", "full"] * 18,
         "gemma3-tiny": ["sliding"] * 5 + ["full"]}  # fmt: skip


@pytest.mark.parametrize("preset", DETAILS)
def test_details_are_the_published_ones(preset: str) -> None:
    def compare(section: Any, values: dict[str, Any]) -> None:
        for name, value in values.items():
            found = type(section).__setpoint__.tag if name == "type" else getattr(section, name)
            if isinstance(value, dict):
                compare(found, value)
            else:
                assert found == value, (type(section).__name__, name)

    _, model = resolved(preset)
    compare(model, DETAILS[preset])
    if preset in KINDS:
        assert [kind_of(model, layer) for layer in range(model.layers)] == KINDS[preset]
    if preset == "gemma3-tiny":
        assert model.embedding_scale == model.dim**0.5
        assert model.heads * model.head_dim != model.dim


FAMILIES = {"llama3-tiny": "llama", "qwen3-tiny": "qwen3", "qwen3-moe-tiny": "qwen3_moe",
            "mistral-tiny": "mistral", "gemma3-tiny": "gemma3_text", "gpt2-tiny": "gpt2",
            "deepseek-tiny": "deepseek_v3"}  # fmt: skip


@pytest.mark.parametrize("preset", FAMILIES)
def test_a_small_preset_of_another_size_is_exported_as_its_family(preset: str) -> None:
    job = compose(Job, preset, flags=["model.dim=64", "model.heads=4", "model.layers=2"]).resolve()
    assert isinstance(job.model, TransformerConfig)
    assert family_for(job.model).model_type == FAMILIES[preset]


def test_a_window_slides_in_all_layers_of_mistral() -> None:
    job, model = resolved("mistral-tiny")
    assert {kind_of(model, layer) for layer in range(model.layers)} == {"sliding"}
    assert model.sliding_window is not None
    assert model.sliding_window < job.batch.sequence_length
    module = model.build(vocab_size=257).eval()
    tokens = torch.randint(257, (1, 3), generator=torch.Generator().manual_seed(1))
    reach = model.layers * (model.sliding_window - 1) + 1
    assert reach < job.batch.sequence_length
    # Any first token and this many others behind it give the last one the same logits.
    rest = torch.randint(257, (1, reach), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        near, far = (module(torch.cat((tokens[:, at : at + 1], rest), 1))[0, -1] for at in (0, 1))
        inside = module(torch.cat((tokens[:, 2:], rest[:, 1:]), 1))[0, -1]
    torch.testing.assert_close(near, far, rtol=0, atol=0)
    assert not torch.equal(near, inside)
