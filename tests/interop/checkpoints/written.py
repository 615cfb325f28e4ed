"""Models of transformers, and their weights as other systems write them.

The layouts are written by permutations of whole tensors, as those systems' own converters have
them, and not by the tables of Setpoint.
"""

import json
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save

HEADS, KV_HEADS, HEAD, WIDTH, FFN, VOCAB, LAYERS = 4, 2, 16, 64, 96, 128, 2
Tensors = dict[str, Tensor]


def decoder(family: str = "llama", **more: Any) -> Any:
    """A small model of transformers with random weights, norms and biases too."""
    from transformers import AutoConfig

    keys: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD, "max_position_embeddings": 64, "tie_word_embeddings": False, **more,
    }  # fmt: skip
    return drawn(AutoConfig.for_model(family, **keys))


def gpt2(vocab: int = VOCAB, **more: Any) -> Any:
    from transformers import GPT2Config

    # Its own default, 50256, is outside of this vocabulary, about which transformers warns.
    keys: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, **more}
    return drawn(
        GPT2Config(
            vocab_size=vocab, n_positions=32, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, **keys
        )
    )


def drawn(config: Any) -> Any:
    """The model with weights that are all drawn."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
            if parameter.ndim == 1:
                parameter.add_(1.0)
    return model


def logits(model: Any) -> Tensor:
    """Those of 24 tokens."""
    tokens = torch.arange(24).remainder(7).mul(5).view(1, 24)
    with torch.no_grad():
        given = model(tokens)
    return given if isinstance(given, Tensor) else given.logits


def config_json(model: Any, folder: Path) -> Path:
    """A directory with the config.json of a model alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config.to_dict()))
    return folder


def neighbours(weight: Tensor, heads: int) -> Tensor:
    """Rows of a projection whose rotated pairs are neighbours, of rows in halves."""
    halves = weight.view(heads, 2, HEAD // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def grouped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The rows of each key-value head together: its queries, its key, its value."""
    rest = query.shape[1:]
    heads = [part.view(KV_HEADS, -1, HEAD, *rest) for part in (query, key, value)]
    return torch.cat(heads, 1).reshape(-1, *rest)


def parts(model: Any) -> tuple[Tensors, list[Tensors]]:
    """The tensors outside layers and in each, by their last names in transformers."""
    outside: Tensors = {}
    layers: list[Tensors] = [{} for _ in range(LAYERS)]
    for name, tensor in model.state_dict().items():
        words = name.removeprefix("model.").split(".")
        if words[0] == "layers":
            layers[int(words[1])][".".join(words[2:])] = tensor.clone()
        else:
            outside[".".join(words)] = tensor.clone()
    return outside, layers


def titan(model: Any, rotates_neighbours: bool = True) -> Tensors:
    """The names of torchtitan and of Meta's Llama."""
    outside, layers = parts(model)
    names = {
        "self_attn.o_proj.weight": "attention.wo.weight",
        "self_attn.v_proj.weight": "attention.wv.weight",
        "self_attn.q_norm.weight": "attention.q_norm.weight",
        "self_attn.k_norm.weight": "attention.k_norm.weight",
        "mlp.gate_proj.weight": "feed_forward.w1.weight",
        "mlp.down_proj.weight": "feed_forward.w2.weight",
        "mlp.up_proj.weight": "feed_forward.w3.weight",
        "input_layernorm.weight": "attention_norm.weight",
        "post_attention_layernorm.weight": "ffn_norm.weight",
        "mlp.gate.weight": "moe.router.gate.weight",
    }
    found = {
        "tok_embeddings.weight": outside["embed_tokens.weight"],
        "norm.weight": outside["norm.weight"],
        "output.weight": outside["lm_head.weight"],
    }
    for number, layer in enumerate(layers):
        for name, tensor in layer.items():
            if name in names:
                found[f"layers.{number}.{names[name]}"] = tensor
        for letter, heads in (("q", HEADS), ("k", KV_HEADS)):
            weight = layer[f"self_attn.{letter}_proj.weight"]
            weight = neighbours(weight, heads) if rotates_neighbours else weight
            found[f"layers.{number}.attention.w{letter}.weight"] = weight
        if "mlp.experts.gate_up_proj" in layer:
            gate, up = layer["mlp.experts.gate_up_proj"].chunk(2, 1)
            found[f"layers.{number}.moe.experts.w1"] = gate.clone()
            found[f"layers.{number}.moe.experts.w3"] = up.clone()
            found[f"layers.{number}.moe.experts.w2"] = layer["mlp.experts.down_proj"]
    return found


def fused_titan(tensors: Tensors) -> Tensors:
    """The same with the fused matrices of torchtitan since 2026."""
    found = dict(tensors)
    for number in range(LAYERS):
        attention, mlp = (f"layers.{number}.{part}" for part in ("attention", "feed_forward"))
        three = [found.pop(f"{attention}.w{letter}.weight") for letter in "qkv"]
        found[f"{attention}.qkv_linear.wqkv.weight"] = grouped(*three)
        two = [found.pop(f"{mlp}.w{part}.weight") for part in (1, 3)]
        found[f"{mlp}.w13.weight"] = torch.stack(two)
    found["lm_head.weight"] = found.pop("output.weight")
    return found


def tune(model: Any, rotates_neighbours: bool = True) -> Tensors:
    """The names of torchtune, in the order of its parameters."""
    outside, layers = parts(model)
    found = {"tok_embeddings.weight": outside["embed_tokens.weight"]}
    names = {"self_attn.q_proj": "attn.q_proj", "self_attn.k_proj": "attn.k_proj",
             "self_attn.v_proj": "attn.v_proj", "self_attn.o_proj": "attn.output_proj",
             "mlp.gate_proj": "mlp.w1", "mlp.down_proj": "mlp.w2",
             "mlp.up_proj": "mlp.w3"}  # fmt: skip
    norms = {"self_attn.q_norm": "attn.q_norm", "self_attn.k_norm": "attn.k_norm",
             "input_layernorm": "sa_norm", "post_attention_layernorm": "mlp_norm"}  # fmt: skip
    for number, layer in enumerate(layers):
        for old, new in names.items():
            for kind in ("weight", "bias"):
                if f"{old}.{kind}" in layer:
                    tensor = layer[f"{old}.{kind}"]
                    if rotates_neighbours and old[-6:] in ("q_proj", "k_proj"):
                        tensor = neighbours(tensor, HEADS if "q_" in old else KV_HEADS)
                    found[f"layers.{number}.{new}.{kind}"] = tensor
        for old, new in norms.items():
            if f"{old}.weight" in layer:
                found[f"layers.{number}.{new}.scale"] = layer[f"{old}.weight"]
    found["norm.scale"] = outside["norm.weight"]
    return found | {"output.weight": outside["lm_head.weight"]}


def lit(model: Any, old: bool = False) -> Tensors:
    """The names of litgpt; of versions before 0.5, with alternating rows of queries and keys."""
    outside, layers = parts(model)
    names = {
        "input_layernorm": "norm_1", "post_attention_layernorm": "norm_2",
        "self_attn.q_norm": "attn.norm_q", "self_attn.k_norm": "attn.norm_k",
        "self_attn.o_proj": "attn.proj", "mlp.gate_proj": "mlp.fc_1", "mlp.up_proj": "mlp.fc_2",
        "mlp.down_proj": "mlp.proj",
    }  # fmt: skip
    found = {
        "lm_head.weight": outside["lm_head.weight"],
        "transformer.wte.weight": outside["embed_tokens.weight"],
        "transformer.ln_f.weight": outside["norm.weight"],
    }
    if model.config.model_type == "gemma2":
        names |= {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "norm_2",
            "post_feedforward_layernorm": "post_mlp_norm",
        }
    for number, layer in enumerate(layers):
        if "self_attn.qkv_proj.weight" in layer:  # Phi 3
            found[f"transformer.h.{number}.attn.qkv.weight"] = layer["self_attn.qkv_proj.weight"]
            gate, up = layer["mlp.gate_up_proj.weight"].chunk(2)
            layer |= {"mlp.gate_proj.weight": gate.clone(), "mlp.up_proj.weight": up.clone()}
        if "mlp.experts.gate_up_proj" in layer:  # Mixtral
            found[f"transformer.h.{number}.mlp.gate.weight"] = layer["mlp.gate.weight"]
            pairs = zip(
                layer["mlp.experts.gate_up_proj"], layer["mlp.experts.down_proj"], strict=True
            )
            for expert, (both, down) in enumerate(pairs):
                gate, up = both.chunk(2)
                beginning = f"transformer.h.{number}.mlp.experts.{expert}"
                found[f"{beginning}.fc_1.weight"] = gate.clone()
                found[f"{beginning}.fc_2.weight"] = up.clone()
                found[f"{beginning}.proj.weight"] = down.clone()
        for kind in ("weight", "bias"):
            three = [f"self_attn.{letter}_proj.{kind}" for letter in "qkv"]
            if three[0] in layer:
                tensors = [layer[name] for name in three]
                name = f"transformer.h.{number}.attn.{'attn' if old else 'qkv'}.{kind}"
                found[name] = grouped(*tensors) if old else torch.cat(tensors)
            for mine, theirs in names.items():
                if f"{mine}.{kind}" in layer:
                    found[f"transformer.h.{number}.{theirs}.{kind}"] = layer[f"{mine}.{kind}"]
    return found


def lit_config(model: Any) -> str:
    """A model_config.yaml of litgpt."""
    keys = model.config
    return "\n".join(
        [
            "name: small",
            f"block_size: {keys.max_position_embeddings}",
            f"n_embd: {WIDTH}",
            f"n_layer: {LAYERS}",
            f"n_head: {HEADS}",
            f"n_query_groups: {KV_HEADS}",
            f"head_size: {HEAD}",
            f"vocab_size: {VOCAB - 3}",
            f"padded_vocab_size: {VOCAB}",
            f"intermediate_size: {FFN}",
            "norm_class_name: RMSNorm",
            "mlp_class_name: LLaMAMLP",
            "rotary_percentage: 1.0",
            "parallel_residual: false",
            "bias: false",
            f"attn_bias: {str(keys.model_type == 'qwen2').lower()}",
            f"norm_qk: {str(keys.model_type == 'qwen3').lower()}",
            f"norm_eps: {keys.rms_norm_eps}",
            "rope_base: 10000",
            "",
        ]
    )


def megatron(model: Any, engine: bool = True) -> Tensors:
    """The names of Megatron-LM; layers are one tensor, norms parts of Transformer Engine's."""
    outside, layers = parts(model)
    found = {
        "embedding.word_embeddings.weight": torch.cat(
            [outside["embed_tokens.weight"], torch.zeros(5, WIDTH)]
        ),
        "output_layer.weight": torch.cat([outside["lm_head.weight"], torch.zeros(5, WIDTH)]),
        "decoder.final_layernorm.weight": outside["norm.weight"],
    }
    attention = (
        "self_attention.linear_qkv.layer_norm_weight" if engine else "input_layernorm.weight"
    )
    mlp = "mlp.linear_fc1.layer_norm_weight" if engine else "pre_mlp_layernorm.weight"
    names = {
        "input_layernorm.weight": attention,
        "post_attention_layernorm.weight": mlp,
        "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
        "self_attn.q_norm.weight": "self_attention.q_layernorm.weight",
        "self_attn.k_norm.weight": "self_attention.k_layernorm.weight",
        "mlp.down_proj.weight": "mlp.linear_fc2.weight",
    }
    of_layers: list[Tensors] = []
    for layer in layers:
        mine = {names[name]: tensor for name, tensor in layer.items() if name in names}
        if "mlp.experts.gate_up_proj" in layer:
            mine["pre_mlp_layernorm.weight"] = mine.pop(mlp)  # before a router, too
            mine["mlp.router.weight"] = layer["mlp.gate.weight"]
            mine["mlp.experts.experts.linear_fc1.weight"] = layer["mlp.experts.gate_up_proj"]
            mine["mlp.experts.experts.linear_fc2.weight"] = layer["mlp.experts.down_proj"]
        else:
            mine["mlp.linear_fc1.weight"] = torch.cat(
                [layer["mlp.gate_proj.weight"], layer["mlp.up_proj.weight"]]
            )
        for kind in ("weight", "bias"):
            if f"self_attn.q_proj.{kind}" in layer:
                three = (layer[f"self_attn.{letter}_proj.{kind}"] for letter in "qkv")
                mine[f"self_attention.linear_qkv.{kind}"] = grouped(*three)
        of_layers.append(mine)
    for name in of_layers[0]:
        found[f"decoder.layers.{name}"] = torch.stack([layer[name] for layer in of_layers])
    return found


def nano(model: Any, bias: bool = True) -> Tensors:
    """The state dict of nanoGPT: linear layers in place of transposed ones."""
    found: Tensors = {}
    for name, tensor in model.state_dict().items():
        is_matrix = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        if bias or not name.endswith(".bias"):
            found[name] = tensor.T.contiguous() if is_matrix else tensor
    found["lm_head.weight"] = found["transformer.wte.weight"]
    return found


def nano_args(bias: bool = True) -> dict[str, Any]:
    return {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "block_size": 32, "bias": bias,
            "vocab_size": VOCAB, "dropout": 0.0}  # fmt: skip


def save_distributed(tensors: Any, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of saving in one process, which is meant
        save(tensors, checkpoint_id=folder, no_dist=True)
    return folder


def gguf_tensors(model: Any, rotates_neighbours: bool = True) -> Tensors:
    """The names of GGUF."""
    outside, layers = parts(model)
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    found = {
        "token_embd.weight": outside["embed_tokens.weight"],
        "output_norm.weight": outside["norm.weight"],
    }
    if not model.config.tie_word_embeddings:
        found["output.weight"] = outside["lm_head.weight"]
    for number, layer in enumerate(layers):
        if (both := layer.pop("mlp.experts.gate_up_proj", None)) is not None:
            experts = {"gate": both.chunk(2, 1)[0], "up": both.chunk(2, 1)[1],
                       "down": layer.pop("mlp.experts.down_proj")}  # fmt: skip
            found |= {f"blk.{number}.ffn_{n}_exps.weight": t.clone() for n, t in experts.items()}
            found[f"blk.{number}.ffn_gate_inp.weight"] = layer.pop("mlp.gate.weight")
        for name, tensor in layer.items():
            module, _, kind = name.rpartition(".")
            if rotates_neighbours and module[-6:] in ("q_proj", "k_proj"):
                tensor = neighbours(tensor, HEADS if "q_" in module else KV_HEADS)
            found[f"blk.{number}.{names[module]}.{kind}"] = tensor
    return found


def gguf_metadata(model: Any) -> dict[str, Any]:
    family = model.config.model_type
    kind = {"qwen3_moe": "qwen3moe", "mixtral": "llama"}.get(family, family)
    experts = {
        f"{kind}.expert_count": 4, f"{kind}.expert_used_count": 2,
        f"{kind}.expert_feed_forward_length": FFN,
    } if family in ("qwen3_moe", "mixtral") else {}  # fmt: skip
    return {
        **experts,
        "general.architecture": kind,
        "general.name": "small",
        f"{kind}.block_count": LAYERS,
        f"{kind}.context_length": 64,
        f"{kind}.embedding_length": WIDTH,
        f"{kind}.feed_forward_length": FFN,
        f"{kind}.attention.head_count": HEADS,
        f"{kind}.attention.head_count_kv": KV_HEADS,
        f"{kind}.attention.key_length": HEAD,
        f"{kind}.attention.layer_norm_rms_epsilon": model.config.rms_norm_eps,
        f"{kind}.rope.freq_base": float(model.config.rope_parameters["rope_theta"]),
        "tokenizer.ggml.tokens": ["a", "b", "ä"],
        "tokenizer.ggml.scores": [0.5, 1.5],
        "tokenizer.ggml.add_bos_token": True,
    }


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _text(value)
    kind = _value(value[0])[0]
    items = b"".join(_value(item)[1] for item in value)
    return 9, struct.pack("<IQ", kind, len(value)) + items


def write_gguf(
    path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[int, tuple[int, ...], bytes]]
) -> Path:
    """Write a file of version 3, little-endian, aligned to 32 bytes.

    Arguments:
        tensors: number of the type, shape as torch has it, and bytes.
    """
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for name, value in metadata.items():
        kind, content = _value(value)
        head += _text(name) + struct.pack("<I", kind) + content
    data = b""
    for name, (kind, shape, content) in tensors.items():
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += content + b"\0" * (-len(content) % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


def plain(tensor: Tensor) -> tuple[int, tuple[int, ...], bytes]:
    """A tensor in the format of GGUF, without quantization."""
    kind = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}[tensor.dtype]
    content = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return kind, tuple(tensor.shape), content


def q8_0(tensor: Tensor) -> tuple[tuple[int, tuple[int, ...], bytes], Tensor]:
    """A tensor in blocks of 32 with a scale each, and the numbers that it holds then."""
    blocks = tensor.numpy().reshape(-1, 32)
    scales = (np.abs(blocks).max(1) / 127).astype(np.float16)
    codes = np.round(blocks / scales[:, None].astype(np.float32)).astype(np.int8)
    content = b"".join(s.tobytes() + c.tobytes() for s, c in zip(scales, codes, strict=True))
    dense = scales[:, None].astype(np.float32) * codes.astype(np.float32)
    return (8, tuple(tensor.shape), content), torch.from_numpy(dense).view(tensor.shape)
