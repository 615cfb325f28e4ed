"""The supported checkpoint systems, each with a table and a reader.

Public sources of the facts are cited at each system.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from setpoint.config import RunError, SetpointError, did_you_mean
from setpoint.config.files.read import read_file
from setpoint.config.migrations import guessed
from setpoint.interop.checkpoints.gguf import MAGIC, read_gguf
from setpoint.interop.checkpoints.layout import (
    MOMENTS,
    Contents,
    ForeignSystem,
    Named,
    Stacked,
    only_file,
    take_numbered_states,
    take_states,
    tensors_in,
    unique_names,
)
from setpoint.interop.checkpoints.safe_read import METADATA, DistributedFiles, read_torch_file
from setpoint.model.pretrained.locate import locate_here
from setpoint.model.pretrained.tensor_files import list_tensors
from setpoint.model.pretrained.weight_names import QKV, fused

# nanoGPT, github.com/karpathy/nanoGPT: model.py and train.py

_NANOGPT_ARGS: Final = {
    "n_layer": "n_layer",
    "n_head": "n_head",
    "n_embd": "n_embd",
    "block_size": "n_positions",
    "vocab_size": "vocab_size",
}


def _read_nanogpt(path: Path, optimizer: bool) -> Contents:
    file = only_file(path, ["ckpt.pt"])
    content = read_torch_file(file)
    if not isinstance(content, dict) or not {"model", "model_args"} <= content.keys():
        raise SetpointError(f"{file} is not a checkpoint of nanoGPT: it lacks model and model_args")
    args: dict[str, Any] = {**content["model_args"]}
    contents = Contents(file, tensors_in(file, content["model"]))
    contents.has_biases = bool(args.pop("bias", True))  # older files have no such key
    dropout = float(args.pop("dropout", 0.0))
    absent = [name for name in _NANOGPT_ARGS if name not in args]
    if other := [*absent, *(name for name in args if name not in _NANOGPT_ARGS)]:
        word = "lacks" if absent else "has"
        raise SetpointError(
            f"{file}: model_args {word} {other[0]}, so it was written by a program that differs "
            f"from nanoGPT, and its model is unknown"
        )
    contents.keys = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        **{key: args[name] for name, key in _NANOGPT_ARGS.items()},
        "activation_function": "gelu",
        **dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), dropout),
    }
    contents.step = int(content.get("iter_num", 0))
    if optimizer and content.get("optimizer"):
        names = unique_names(contents.tensors)
        decayed = [name for name in names if contents.tensors[name].ndim >= 2]
        vectors = [name for name in names if contents.tensors[name].ndim < 2]
        take_numbered_states(contents, [decayed, vectors], content["optimizer"])
    return contents


NANOGPT: Final = ForeignSystem(
    title="nanoGPT",
    families={"gpt2": False},
    read=_read_nanogpt,
    layer="transformer.h.{}",
    names={
        "embedding": "transformer.wte",
        "position_embedding": "transformer.wpe",
        "attention_norm": "ln_1",
        "feed_forward_norm": "ln_2",
        **fused("attn.c_attn", *QKV),
        "attention.output": "attn.c_proj",
        "feed_forward.up": "mlp.c_fc",
        "feed_forward.down": "mlp.c_proj",
        "norm": "transformer.ln_f",
        "output": "lm_head",
    },
    surplus=(r"transformer\.h\.\d+\.attn\.bias",),  # the causal mask
)


# litgpt, github.com/Lightning-AI/litgpt: config.py and scripts/convert_hf_checkpoint.py

_LITGPT_PLAIN: Final[Mapping[str, object]] = {
    "parallel_residual": False,
    "shared_attention_norm": False,
    "bias": False,
    "lm_head_bias": False,
    "norm_class_name": "RMSNorm",
    "mlp_class_name": "LLaMAMLP",
    "rotary_percentage": 1.0,
    "rope_condense_ratio": 1,
    "post_attention_norm": False,
    "post_mlp_norm": False,
    "norm_1": True,
    "norm_2": True,
    "scale_embeddings": False,
    "sliding_window_size": None,
    "attention_logit_softcapping": None,
    "final_logit_softcapping": None,
    "attention_scores_scalar": None,
    "latent_attention": None,
    "rope_local_base_freq": None,
    "n_expert": 0,
}
"""Values in model_config.yaml that make a model Llama, Qwen 2 or Qwen 3."""
_LITGPT_ROPE: Final = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_seq_len": "original_max_position_embeddings",
}


def _litgpt_keys(file: Path) -> dict[str, Any] | None:
    """Convert a model_config.yaml to config.json keys."""
    given: Any = guessed(read_file(str(file)).data)
    defaults = {"parallel_residual": True, "bias": True, "norm_class_name": "LayerNorm",
                "mlp_class_name": "GptNeoxMLP", "rotary_percentage": 0.25}  # fmt: skip
    for key, value in _LITGPT_PLAIN.items():
        if given.get(key, defaults.get(key, value)) != value:
            return None
    family = "qwen3" if given.get("norm_qk") else "qwen2" if given.get("attn_bias") else "llama"
    heads = int(given["n_head"])
    keys: dict[str, Any] = {
        "model_type": family,
        "vocab_size": given["padded_vocab_size"],
        "hidden_size": given["n_embd"],
        "num_hidden_layers": given["n_layer"],
        "num_attention_heads": heads,
        "num_key_value_heads": given.get("n_query_groups") or heads,
        "head_dim": given.get("head_size") or int(given["n_embd"]) // heads,
        "intermediate_size": given["intermediate_size"],
        "max_position_embeddings": given["block_size"],
        "rms_norm_eps": given.get("norm_eps", 1e-5),
        "rope_theta": float(given.get("rope_base", 10_000)),
        "tie_word_embeddings": False,
    }
    scaling = given.get("rope_adjustments")
    if scaling:
        if scaling.keys() != _LITGPT_ROPE.keys():
            return None
        words = {_LITGPT_ROPE[key]: value for key, value in scaling.items()}
        keys["rope_scaling"] = {"rope_type": "llama3", **words}
    return keys


def _read_litgpt(path: Path, optimizer: bool) -> Contents:
    file = only_file(path, ["lit_model.pth"])
    content = read_torch_file(file)
    state: object = content
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        state = content["model"]
    contents = Contents(file, tensors_in(file, state))
    described = file.with_name("model_config.yaml")
    if described.is_file():
        try:
            contents.keys = _litgpt_keys(described)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SetpointError(f"{described} does not describe a model: {error}") from error
        if contents.keys is None:
            models = "Llama, Qwen 2 and Qwen 3"
            contents.unconverted = f"Only configurations of {models} are read from {described}"
    if isinstance(content, dict) and isinstance(content.get("step_count"), int):
        contents.step = content["step_count"]
    saved = content.get("optimizer") if isinstance(content, dict) else None
    if optimizer and isinstance(saved, dict):
        names = unique_names(contents.tensors)
        if all(isinstance(name, str) for name in saved["state"]):
            take_states(contents, saved["state"])
        else:
            take_numbered_states(contents, [names], saved)
    return contents


LITGPT: Final = ForeignSystem(
    title="litgpt",
    families=dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "qwen3", "phi3", "gemma", "gemma2"), False
    ),
    read=_read_litgpt,
    layer="transformer.h.{}",
    names={
        "embedding": "transformer.wte",
        "attention_norm": "norm_1",
        "attention_output_norm": "post_attention_norm",
        "feed_forward_norm": "norm_2",
        "feed_forward_output_norm": "post_mlp_norm",
        **fused("attn.qkv", *QKV),
        "attention.query_norm": "attn.norm_q",
        "attention.key_norm": "attn.norm_k",
        "attention.output": "attn.proj",
        "feed_forward.gate": "mlp.fc_1",
        "feed_forward.up": "mlp.fc_2",
        "feed_forward.down": "mlp.proj",
        "feed_forward.router": "mlp.gate",
        "feed_forward.experts.gate": "mlp.experts.{}.fc_1",
        "feed_forward.experts.up": "mlp.experts.{}.fc_2",
        "feed_forward.experts.down": "mlp.experts.{}.proj",
        "norm": "transformer.ln_f",
        "output": "lm_head",
    },
    grouped={"attn.attn": ("attn.qkv",)},  # before version 0.5
)


# torchtune, github.com/pytorch/torchtune: models/convert_weights.py, training/checkpointing


def _read_torchtune(path: Path, optimizer: bool) -> Contents:
    file = path
    if path.is_dir():
        files = [f for f in sorted(path.glob("*")) if f.suffix in (".pt", ".pth", ".bin")]
        files = [f for f in files if f.name not in ("recipe_state.pt", "adapter_model.bin")]
        if len(files) != 1:
            listed = ", ".join(f.name for f in files) or "none"
            raise SetpointError(f"{path} must contain one file of weights, but contains: {listed}")
        file = files[0]
    content = read_torch_file(file)
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content = content["model"]
    contents = Contents(file, tensors_in(file, content))
    if any(".lora_a." in name for name in contents.tensors):
        raise SetpointError(f"{file} contains the weights of an adapter; merge them in torchtune")
    places = [file.parent / "recipe_state.pt", *(
        folder / "recipe_state" / "recipe_state.pt" for folder in (file.parent, file.parent.parent)
    )]  # fmt: skip
    recipe = next((place for place in places if place.is_file()), None)
    if optimizer and recipe is not None:
        saved = read_torch_file(recipe).get("optimizer")
        if isinstance(saved, dict) and all(isinstance(name, str) for name in saved["state"]):
            take_states(contents, saved["state"])
        elif isinstance(saved, dict):
            take_numbered_states(contents, [unique_names(contents.tensors)], saved)
    return contents


TORCHTUNE: Final = ForeignSystem(
    title="torchtune",
    families={"llama": True, "mistral": True, "qwen2": False, "qwen3": False},
    read=_read_torchtune,
    layer="layers.{}",
    norms="scale",
    names={
        "embedding": "tok_embeddings",
        "attention_norm": "sa_norm",
        "feed_forward_norm": "mlp_norm",
        "attention.query": "attn.q_proj",
        "attention.key": "attn.k_proj",
        "attention.value": "attn.v_proj",
        "attention.output": "attn.output_proj",
        "attention.query_norm": "attn.q_norm",
        "attention.key_norm": "attn.k_norm",
        "feed_forward.gate": "mlp.w1",
        "feed_forward.up": "mlp.w3",
        "feed_forward.down": "mlp.w2",
        "norm": "norm",
        "output": "output",
    },
)


# torchtitan, github.com/pytorch/torchtitan: components/checkpoint.py, models/llama3, models/qwen3

_OPTIMIZER: Final = "optimizer."


def _read_titan(path: Path, optimizer: bool) -> Contents:
    if path.is_file():  # of torch.distributed.checkpoint.format_utils.dcp_to_torch_save, or Meta's
        content = read_torch_file(path)
        model = content.get("model", content) if isinstance(content, dict) else content
        return Contents(path, tensors_in(path, model))
    files = DistributedFiles(path)
    not_weights = (_OPTIMIZER, "lr_scheduler.", "dataloader.", "train_state.")
    names = [name for name in files.shapes if not name.startswith(not_weights)]
    contents = Contents(path, files.read(names))
    if "train_state.step" in files.shapes:
        contents.step = int(files.read(["train_state.step"])["train_state.step"])
    elif match := re.fullmatch(r"step-(\d+)", path.resolve().name):
        contents.step = int(match[1])
    if optimizer:
        beginning = f"{_OPTIMIZER}state."
        keys = [name for name in files.shapes if name.startswith(beginning)]
        states: dict[str, dict[str, Tensor]] = {}
        for name, tensor in files.read(keys).items():
            parameter, _, key = name.removeprefix(beginning).rpartition(".")
            states.setdefault(parameter, {})[key] = tensor
        if states:
            take_states(contents, states)
    return contents


TORCHTITAN: Final = ForeignSystem(
    title="torchtitan",
    families={"llama": True, "qwen3": False, "qwen3_moe": False},
    read=_read_titan,
    layer="layers.{}",
    names={
        "embedding": "tok_embeddings",
        "attention_norm": "attention_norm",
        "feed_forward_norm": "ffn_norm",
        "attention.query": "attention.wq",
        "attention.key": "attention.wk",
        "attention.value": "attention.wv",
        "attention.output": "attention.wo",
        "attention.query_norm": "attention.q_norm",
        "attention.key_norm": "attention.k_norm",
        "feed_forward.gate": "feed_forward.w1",
        "feed_forward.up": "feed_forward.w3",
        "feed_forward.down": "feed_forward.w2",
        "feed_forward.router": "moe.router.gate",
        "feed_forward.experts.gate": "moe.experts.{}.w1",
        "feed_forward.experts.up": "moe.experts.{}.w3",
        "feed_forward.experts.down": "moe.experts.{}.w2",
        "norm": "norm",
        "output": "output",
    },
    stacked=(
        Stacked(r"(.*\.moe\.experts)\.(w\d)", r"\1.{}.\2.weight"),
        Stacked(r"(.*\.feed_forward)\.w13\.weight", r"\1.w{}.weight", ("1", "3")),
    ),
    grouped={"attention.wqkv": ("attention.wq", "attention.wk", "attention.wv")},
    other_names={".attention.qkv_linear.": ".attention.", "lm_head.weight": "output.weight"},
    surplus=(r"freqs_cis|rope_cache|rope\.(freqs|cache)", r".*\.moe\.tokens_per_expert"),
)


# Megatron-LM, github.com/NVIDIA/Megatron-LM: core/models/gpt, core/dist_checkpointing


def _read_megatron(path: Path, optimizer: bool) -> Contents:
    newest = path / "latest_checkpointed_iteration.txt"
    if newest.is_file():
        text = newest.read_text().strip()
        path = path / (f"iter_{int(text):07d}" if text.isdecimal() else text)
    if not (path / METADATA).is_file():
        raise SetpointError(
            f"{path} holds no {METADATA}: only Megatron's distributed checkpoints are read "
            f"(--ckpt-format torch_dist), because its older format pickles its own classes"
        )
    files = DistributedFiles(path)
    known = [name.removeprefix("model.") for name in files.shapes]
    names = dict(zip(known, files.shapes, strict=True))
    weights = [name for name in known if re.match(r"(decoder|embedding|output_layer)\.", name)]
    tensors = files.read(names[name] for name in weights if "_extra_state" not in name)
    contents = Contents(path, {name.removeprefix("model."): t for name, t in tensors.items()})
    if match := re.fullmatch(r"iter_(\d+)", path.resolve().name):
        contents.step = int(match[1])
    if optimizer:
        states: dict[str, dict[str, Tensor]] = {}
        shapes = {name: tuple(tensor.shape) for name, tensor in contents.tensors.items()}
        for key in MOMENTS:
            beginning = f"{_OPTIMIZER}state.{key}."
            moments = {
                name.removeprefix(beginning): name for name in known if name.startswith(beginning)
            }
            if any(files.shapes[names[moments[name]]] != shapes.get(name) for name in moments):
                states = {}
                contents.note(
                    "the optimizer state was not read: it is not divided like the weights"
                )
                break
            read = files.read(names[name] for name in moments.values())
            for name, full in moments.items():
                states.setdefault(name, {})[key] = read[names[full]]
        if states:
            take_states(contents, states)
    return contents


MEGATRON: Final = ForeignSystem(
    title="Megatron-LM",
    families=dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"), False),
    read=_read_megatron,
    layer="decoder.layers.{}",
    names={
        "embedding": "embedding.word_embeddings",
        "attention_norm": "input_layernorm",
        "feed_forward_norm": "pre_mlp_layernorm",
        **fused("self_attention.linear_qkv", *QKV),
        "attention.query_norm": "self_attention.q_layernorm",
        "attention.key_norm": "self_attention.k_layernorm",
        "attention.output": "self_attention.linear_proj",
        **fused("mlp.linear_fc1", "feed_forward.gate", "feed_forward.up"),
        "feed_forward.down": "mlp.linear_fc2",
        "feed_forward.router": "mlp.router",
        **fused(
            "mlp.experts.{}.linear_fc1", "feed_forward.experts.gate", "feed_forward.experts.up"
        ),
        "feed_forward.experts.down": "mlp.experts.{}.linear_fc2",
        "norm": "decoder.final_layernorm",
        "output": "output_layer",
    },
    stacked=(
        Stacked(r"(decoder\.layers)\.(?!\d)(.*)", r"\1.{}.\2"),
        Stacked(r"(.*\.mlp\.experts)\.experts\.(linear_fc\d)\.weight", r"\1.{}.\2.weight"),
    ),
    grouped={"self_attention.linear_qkv": ("self_attention.linear_qkv",)},
    other_names={  # Transformer Engine's linear layers contain the norm before them
        ".self_attention.linear_qkv.layer_norm_weight": ".input_layernorm.weight",
        ".mlp.linear_fc1.layer_norm_weight": ".pre_mlp_layernorm.weight",
    },
)


# GGUF, github.com/ggml-org/llama.cpp: gguf-py/gguf/constants.py, convert_hf_to_gguf.py

_GGUF_TYPES: Final = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
                      "qwen3moe": "qwen3_moe"}  # fmt: skip
"""Families of transformers by the architectures of GGUF; Mixtral is a Llama with experts."""


def _gguf_keys(path: Path, metadata: Mapping[str, Any], tensors: Named) -> dict[str, Any] | None:
    """Convert the metadata to config.json keys."""
    kind = metadata.get("general.architecture")
    if kind not in _GGUF_TYPES:
        return None

    def value(name: str, default: Any = None) -> Any:
        entry = metadata.get(f"{kind}.{name}", default)
        if entry is None:
            raise RunError(f"{path} is damaged: its metadata lacks {kind}.{name}")
        return entry

    by_layer = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    if any(isinstance(metadata.get(f"{kind}.{name}"), list) for name in by_layer):
        return None
    heads, width = value("attention.head_count"), value("embedding_length")
    head = value("attention.key_length", width // heads)
    scaling = metadata.get(f"{kind}.rope.scaling.type", "none")
    partial = value("rope.dimension_count", head) != head
    if "rope_freqs.weight" in tensors or partial or scaling not in ("none", "linear"):
        return None
    keys = {
        "model_type": _GGUF_TYPES[kind],
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv", heads),
        "head_dim": head,
        "intermediate_size": value("feed_forward_length"),
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base", 10_000.0),
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if experts := metadata.get(f"{kind}.expert_count"):
        used = value("expert_used_count")
        qwen = {"num_experts": experts, "num_experts_per_tok": used, "norm_topk_prob": True,
               "moe_intermediate_size": value("expert_feed_forward_length", 0)}  # fmt: skip
        mixtral = {"model_type": "mixtral", "num_local_experts": experts,
                   "num_experts_per_tok": used}  # fmt: skip
        keys |= mixtral if kind == "llama" else qwen
    if scaling == "linear":
        keys["rope_scaling"] = {"rope_type": "linear", "factor": value("rope.scaling.factor")}
    # Numbers in files are fp32; the shortest decimal with the same value is the intended one.
    for name in ("rms_norm_eps", "rope_theta"):
        keys[name] = float(f"{keys[name]:.7g}")
    return keys


def _read_gguf(path: Path, optimizer: bool) -> Contents:
    del optimizer  # the format has none
    file = only_file(path, ["*.gguf"])
    content = read_gguf(file)
    if int(content.metadata.get("split.count", 1)) > 1:
        raise SetpointError(
            f"{file} is one of {content.metadata['split.count']} files; merge them: "
            f"llama-gguf-split --merge {file.name} whole.gguf"
        )
    contents = Contents(file, dict(content.tensors))
    if "token_embd.weight" not in contents.tensors:
        raise SetpointError(f"{file} contains no language model: it lacks token_embd.weight")
    contents.keys = _gguf_keys(file, content.metadata, contents.tensors)
    if quantized := content.encodings - {"F32", "F16", "BF16"}:
        contents.note(
            f"weights in {', '.join(sorted(quantized))} are dequantized to fp32; the precision "
            f"that {file.name} had lost is not restored"
        )
    return contents


GGUF: Final = ForeignSystem(
    title="GGUF",
    families={
        "llama": True,
        "mistral": True,
        "mixtral": True,
        "qwen2": False,
        "qwen3": False,
        "qwen3_moe": False,
    },
    read=_read_gguf,
    layer="blk.{}",
    names={
        "embedding": "token_embd",
        "attention_norm": "attn_norm",
        "feed_forward_norm": "ffn_norm",
        "attention.query": "attn_q",
        "attention.key": "attn_k",
        "attention.value": "attn_v",
        "attention.output": "attn_output",
        "attention.query_norm": "attn_q_norm",
        "attention.key_norm": "attn_k_norm",
        "feed_forward.gate": "ffn_gate",
        "feed_forward.up": "ffn_up",
        "feed_forward.down": "ffn_down",
        "feed_forward.router": "ffn_gate_inp",
        "feed_forward.experts.gate": "ffn_gate_exps.{}",
        "feed_forward.experts.up": "ffn_up_exps.{}",
        "feed_forward.experts.down": "ffn_down_exps.{}",
        "norm": "output_norm",
        "output": "output",
    },
    stacked=(Stacked(r"(blk\.\d+\.ffn_\w+_exps)\.weight", r"\1.{}.weight"),),
    surplus=(r"rope_freqs\.weight",),  # derived from config.json
)

SYSTEMS: Final = {
    "nanogpt": NANOGPT,
    "litgpt": LITGPT,
    "torchtune": TORCHTUNE,
    "torchtitan": TORCHTITAN,
    "megatron": MEGATRON,
    "gguf": GGUF,
}
"""Systems by their name in `SYSTEM:PATH`."""


def system_of(source: str) -> tuple[ForeignSystem, Path]:
    """The system and the path in `[SYSTEM:]PATH`.

    Raises:
        SetpointError: the path does not exist, or its content is ambiguous.
    """
    name, colon, rest = source.partition(":")
    is_system = bool(colon) and name.lower() in SYSTEMS
    path = Path(rest if is_system else source).expanduser()
    if not path.exists():
        hint = did_you_mean(name, SYSTEMS, " ") if colon and not is_system else ""
        raise SetpointError(f"there is no file or directory {path}.{hint}")
    if is_system:
        return SYSTEMS[name.lower()], path
    name = _recognized(path)
    if name is None:
        raise SetpointError(f"{path} {_unrecognized(path)}")
    return SYSTEMS[name], path


def _unrecognized(path: Path) -> str:
    """The reason why a path is no checkpoint of another system, with valid choices.

    Raises:
        SetpointError: it is a model of Hugging Face whose weights cannot be read.
    """
    folder = path.parent if path.name == "pytorch_model.bin" else path
    place = None
    with suppress(SetpointError):
        place = locate_here(str(folder.resolve()))
    if place is None:
        if path.is_dir() and (inner := _newest_inside(path)):
            return f"contains checkpoints, but is not one itself.\nValid: {inner}, for instance"
        systems = ", ".join(SYSTEMS)
        return f"is not a recognized checkpoint.\nValid: SYSTEM:PATH with one of {systems}"
    if not place.is_checkpoint:
        list_tensors(folder)
    owner = "Setpoint" if place.is_checkpoint else "Hugging Face"
    return (
        f"is a model of {owner}, which needs no conversion.\nValid: `setpoint import {folder}`, or "
        f"model.pretrained = {folder}"
    )


def _newest_inside(path: Path) -> Path | None:
    """The newest checkpoint among the directories in a directory, by their names."""
    for folder in sorted(path.glob("*/"), key=lambda f: (len(f.name), f.name), reverse=True):
        with suppress(SetpointError, OSError):  # damaged, or without permission
            if _recognized(folder):
                return folder
    return None


def _recognized(path: Path) -> str | None:
    if path.is_dir():
        for file, name in (("ckpt.pt", "nanogpt"), ("lit_model.pth", "litgpt"),
                           ("latest_checkpointed_iteration.txt", "megatron")):  # fmt: skip
            if (path / file).is_file():
                return name
        if (path / METADATA).is_file():
            return _by_names(DistributedFiles(path).shapes)
        if len(files := [*path.glob("*.gguf")]) == 1:
            return "gguf"
        files = [f for f in path.glob("*.pt") if f.name != "recipe_state.pt"]
        return _recognized(files[0]) if len(files) == 1 else None
    with path.open("rb") as file:
        if file.read(4) == MAGIC:
            return "gguf"
    if path.name == "lit_model.pth":
        return "litgpt"
    content = read_torch_file(path)
    if not isinstance(content, dict):
        return None
    if "model_args" in content:
        return "nanogpt"
    model = content.get("model", content)
    return _by_names(model) if isinstance(model, dict) else None


def _by_names(tensors: Iterable[Any]) -> str | None:
    names = list(map(str, tensors))
    marks = {".attn.output_proj.": "torchtune", ".attention.wo.": "torchtitan",
             "embedding.word_embeddings.": "megatron", ".attn.proj.": "litgpt"}  # fmt: skip
    return next((s for mark, s in marks.items() if any(mark in name for name in names)), None)
