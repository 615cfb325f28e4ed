"""torchtune's models, by builder, as Setpoint decoders."""

from __future__ import annotations

import math
import re
from typing import Any

from setpoint.interop.dialect import Conversion

LLAMA3 = {"vocab_size": 128_256, "norm_eps": 1e-5, "rope_base": 500_000.0}
QWEN = {"norm_eps": 1e-6, "rope_base": 1_000_000.0}
GEMMA = {"vocab_size": 256_000, "norm_eps": 1e-6, "activation": "geglu_tanh", "head_dim": 256,
         "norm": {"type": "rms_norm", "zero_centered": True}, "tie_embeddings": True,
         "max_sequence_length": 8192}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama2": {"vocab_size": 32_000, "norm_eps": 1e-5, "max_sequence_length": 4096},
    "code_llama2": {"vocab_size": 32_016, "norm_eps": 1e-5, "rope_base": 1_000_000.0,
                    "max_sequence_length": 16_384},
    "llama3": {**LLAMA3, "max_sequence_length": 8192},
    "llama3_1": {**LLAMA3, "max_sequence_length": 131_072, "rope_factor": 8},
    "llama3_2": {**LLAMA3, "max_sequence_length": 131_072, "rope_factor": 32,
                 "tie_embeddings": True},
    "llama3_3": {**LLAMA3, "max_sequence_length": 131_072, "rope_factor": 8},
    "mistral": {"vocab_size": 32_000, "norm_eps": 1e-5, "max_sequence_length": 32_768},
    "phi3": {"vocab_size": 32_064, "norm_eps": 1e-5, "max_sequence_length": 4096},
    "phi4": {"vocab_size": 100_352, "norm_eps": 1e-5, "max_sequence_length": 16_384},
    "qwen2": {**QWEN, "vocab_size": 151_936, "max_sequence_length": 32_768, "qkv_bias": True},
    "qwen2_5": {**QWEN, "vocab_size": 151_936, "max_sequence_length": 32_768, "qkv_bias": True},
    "qwen3": {**QWEN, "vocab_size": 151_936, "max_sequence_length": 40_960, "head_dim": 128,
              "qk_norm": True},
    "gemma": GEMMA,
    "gemma2": {**GEMMA, "norm_placement": "both", "attention_soft_cap": 50.0,
               "logit_soft_cap": 30.0, "attention_pattern": ["sliding", "full"],
               "sliding_window": 4096},
}  # fmt: skip
"""Fields of the models of a package `torchtune.models.NAME`."""
SIZES: dict[str, tuple[int, int, int, int, int]] = {
    "llama2_7b": (4096, 32, 32, 32, 11_008), "llama2_13b": (5120, 40, 40, 40, 13_824),
    "llama2_70b": (8192, 80, 64, 8, 28_672), "code_llama2_7b": (4096, 32, 32, 32, 11_008),
    "code_llama2_13b": (5120, 40, 40, 40, 13_824), "code_llama2_70b": (8192, 80, 64, 8, 28_672),
    "llama3_8b": (4096, 32, 32, 8, 14_336), "llama3_70b": (8192, 80, 64, 8, 28_672),
    "llama3_1_8b": (4096, 32, 32, 8, 14_336), "llama3_1_70b": (8192, 80, 64, 8, 28_672),
    "llama3_1_405b": (16_384, 126, 128, 8, 53_248), "llama3_3_70b": (8192, 80, 64, 8, 28_672),
    "llama3_2_1b": (2048, 16, 32, 8, 8192), "llama3_2_3b": (3072, 28, 24, 8, 8192),
    "mistral_7b": (4096, 32, 32, 8, 14_336), "phi3_mini": (3072, 32, 32, 32, 8192),
    "phi4_14b": (5120, 40, 40, 10, 17_920), "qwen2_0_5b": (896, 24, 14, 2, 4864),
    "qwen2_1_5b": (1536, 28, 12, 2, 8960), "qwen2_7b": (3584, 28, 28, 4, 18_944),
    "qwen2_5_0_5b": (896, 24, 14, 2, 4864), "qwen2_5_1_5b": (1536, 28, 12, 2, 8960),
    "qwen2_5_3b": (2048, 36, 16, 2, 11_008), "qwen2_5_7b": (3584, 28, 28, 4, 18_944),
    "qwen2_5_14b": (5120, 48, 40, 8, 13_824), "qwen2_5_32b": (5120, 64, 40, 8, 27_648),
    "qwen2_5_72b": (8192, 80, 64, 8, 29_568), "qwen3_0_6b": (1024, 28, 16, 8, 3072),
    "qwen3_1_7b": (2048, 28, 16, 8, 6144), "qwen3_4b": (2560, 36, 32, 8, 9728),
    "qwen3_8b": (4096, 36, 32, 8, 12_288), "qwen3_14b": (5120, 40, 40, 8, 17_408),
    "qwen3_32b": (5120, 64, 64, 8, 25_600), "gemma_2b": (2048, 18, 8, 1, 16_384),
    "gemma_7b": (3072, 28, 16, 16, 24_576), "gemma2_2b": (2304, 26, 8, 4, 9216),
    "gemma2_9b": (3584, 42, 16, 8, 14_336), "gemma2_27b": (4608, 46, 32, 16, 36_864),
}  # fmt: skip
"""dim, layers, heads, kv_heads and ffn_dim of a model by its builder, without base or instruct."""
LARGE_VOCABULARY = ("qwen2_7b", "qwen2_5_7b", "qwen2_5_14b", "qwen2_5_32b", "qwen2_5_72b")
TIED = ("qwen2_0_5b", "qwen2_1_5b", "qwen2_5_0_5b", "qwen2_5_1_5b", "qwen2_5_3b", "qwen3_0_6b",
        "qwen3_1_7b", "qwen3_4b")  # fmt: skip


def component(c: Conversion, section: str) -> tuple[str, str]:
    """Package and name in the import path of a `_component_`."""
    path = c.value(f"{section}._component_")
    package, _, name = (path if isinstance(path, str) else "").rpartition(".")
    return package, name


def convert_model(c: Conversion) -> bool:
    """Convert the model builder with its sizes; False after a problem."""
    key = "model._component_"
    package, name = component(c, "model")
    family = package.removeprefix("torchtune.models.").partition(".")[0]
    plain = re.sub(r"^q?lora_", "", name)
    size = re.sub(r"_(base|instruct)$", "", plain)
    fields = FAMILIES.get(family)
    if fields is None or not (size in SIZES or plain == family):
        c.wrong(key, "a builder of a text model of " + ", ".join(FAMILIES))
        return False
    fields = dict(fields)
    if size in SIZES:
        names = ("dim", "layers", "heads", "kv_heads", "ffn_dim")
        fields |= dict(zip(names, SIZES[size], strict=True))
    if size in LARGE_VOCABULARY:
        fields["vocab_size"] = 152_064
    fields |= {"tie_embeddings": True} if size in TIED else {}
    if plain.endswith("_base"):
        fields["max_sequence_length"] = 131_072 if family == "qwen2_5" else 32_768
        larger = ("qwen2_5_14b", "qwen2_5_32b", "qwen2_5_72b")
        fields |= {"norm_eps": 1e-5} if size in larger else {}
    given = {"num_layers": "layers", "num_heads": "heads", "num_kv_heads": "kv_heads",
             "head_dim": "head_dim", "embed_dim": "dim", "intermediate_dim": "ffn_dim",
             "max_seq_len": "max_sequence_length", "norm_eps": "norm_eps",
             "rope_base": "rope_base", "scale_factor": "rope_factor", "vocab_size": "vocab_size",
             "tie_word_embeddings": "tie_embeddings"}  # fmt: skip
    keys = dict.fromkeys(fields, key)
    for word, path in given.items():
        read = c.value if word == "tie_word_embeddings" else c.number
        if (value := read(f"model.{word}")) is not None:
            fields[path], keys[path] = value, f"model.{word}"
    if missing := [name for name in ("dim", "layers", "heads", "vocab_size") if name not in fields]:
        words = {path: word for word, path in given.items()}
        for name in missing:
            c.wrong(f"model.{words[name]}", f"a number of {plain}")
        return False
    if family.startswith("gemma"):
        fields["embedding_scale"] = math.sqrt(fields["dim"])
        if size == "gemma2_27b":
            fields |= {"head_dim": 128, "attention_scale": 144**-0.5}
    if factor := fields.pop("rope_factor", None):
        fields["rope_scaling"] = {"type": "llama3", "factor": float(factor),
                                  "original_length": 8192}  # fmt: skip
    c.set("model.type", "transformer", key)
    for field, value in fields.items():
        c.set(f"model.{field}", value, keys.get(field, key))
    if (dropout := c.number("model.attn_dropout")) > 0:
        c.set("model.attention_dropout", dropout, "model.attn_dropout")
    if family == "gemma2":
        c.differs(
            key, "soft caps are 50 for attention and 30 for logits, as in the weights", "reversed"
        )
    if family == "phi4":
        text = "the RoPE base of the weights' config.json is used; in torchtune, 10,000"
        c.set("model.rope_base", 250_000.0, key)
        c.report("differs", key, text)
    return True
