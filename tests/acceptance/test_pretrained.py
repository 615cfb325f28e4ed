"""Models of other libraries: unusual shapes give their logits, and wrong files are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.config import SetpointError
from setpoint.model import config_from_pretrained, load_pretrained, save_pretrained

from ..model.pretrained import ours, theirs

MOE = theirs.MOE
ODD = {"hidden_size": 30, "intermediate_size": 37, "num_attention_heads": 5}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "odd sizes": ("llama", {**ODD, "num_key_value_heads": 1, "head_dim": 14}),
    "far beyond the original length": (
        "llama",
        {"rope_parameters": theirs.YARN, "max_position_embeddings": 500},
    ),
    "a window of one": ("mistral", {"sliding_window": 1}),
    "all experts": ("qwen3_moe", {**MOE, "num_experts": 5, "num_experts_per_tok": 5}),
    "one key-value head": (
        "gemma3_text",
        {**theirs.GEMMA, "num_key_value_heads": 1, "sliding_window": 1, "head_dim": 6,
         "query_pre_attn_scalar": 3},
    ),
    "heads of seven": ("gpt2", {"n_embd": 21, "n_head": 3, "n_inner": 17}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_unusual_shapes_both_ways(name: str, tmp_path: Path) -> None:
    import transformers

    model = theirs.make(*SHAPES[name])
    length = 300 if name.startswith("far") else theirs.LENGTH
    tokens = theirs.tokens(length=length)
    model.save_pretrained(tmp_path / "theirs")
    own = load_pretrained(tmp_path / "theirs")
    save_pretrained(own, tmp_path / "ours")
    back = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", attn_implementation="eager"
    )
    with torch.no_grad():
        expected = model(tokens).logits
        assert float((own(tokens) - expected).abs().max()) < 1e-4
        assert torch.equal(back.eval()(tokens).logits, expected)


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
    ({}, "rope_parameters", {**theirs.YARN, "original_max_position_embeddings": 0}),
    ({}, "rope_parameters", {**theirs.LLAMA3, "original_max_position_embeddings": float("inf")}),
    (theirs.MOE, "mlp_only_layers", ["a"]),
    (theirs.GEMMA, "layer_types", [[], [], []]),
    (theirs.GEMMA, "rope_parameters", {"full_attention": 3}),
    (theirs.GEMMA, "rope_scaling", "abc"),
]
KINDS = {id(theirs.MOE): "qwen3_moe", id(theirs.GEMMA): "gemma3_text"}
HEADS = {"qwen3_moe": "Qwen3MoeForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}


def test_a_wrong_value_in_config_json_is_named(tmp_path: Path) -> None:
    for keys, name, value in WRONG:
        kind = KINDS.get(id(keys), "llama")
        described: dict[str, Any] = {
            **theirs.BASE,
            **keys,
            "model_type": kind,
            "architectures": [HEADS.get(kind, "LlamaForCausalLM")],
        }
        (tmp_path / "config.json").write_text(json.dumps(described))
        config_from_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({**described, name: value}))
        with pytest.raises(SetpointError) as caught:
            config_from_pretrained(tmp_path)
        words = (name, "architecture", "norm_eps")
        assert any(word in str(caught.value) for word in words), (name, value, caught.value)


@pytest.mark.parametrize("device", ["cuda", "nowhere"])
def test_a_device_that_is_not_there(device: str, tmp_path: Path) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("it is there")
    folder = ours.directory(tmp_path / "model")
    with pytest.raises(SetpointError, match=f"device = {device}: .*Valid: cpu"):
        load_pretrained(folder, device=device)
