"""One architecture three times with equal weights: Setpoint, transformers, plain PyTorch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from model import bare
from model.bare import Shape

Body = Callable[[Tensor], Tensor]


class Sides(NamedTuple):
    """The same model three times; each maps (B, S) tokens to (B, S, dim) hidden states.

    Arguments:
        modules: for their parameters, by the name of the side.
        bodies: what to call, by the name of the side.
    """

    modules: dict[str, nn.Module]
    bodies: dict[str, Body]


def _common(shape: Shape) -> dict[str, Any]:
    return {
        "vocab_size": shape.vocab_size, "hidden_size": shape.dim,
        "intermediate_size": shape.ffn_dim, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "max_position_embeddings": shape.length,
        "tie_word_embeddings": True,
    }  # fmt: skip


def _llama(shape: Shape) -> tuple[Any, nn.Module]:
    from transformers import LlamaConfig

    theirs = LlamaConfig(**_common(shape), rms_norm_eps=1e-5, rope_theta=5e5)
    return theirs, bare.Llama(shape, 1e-5, 5e5, qk_norm=False)


def _qwen3(shape: Shape) -> tuple[Any, nn.Module]:
    from transformers import Qwen3Config

    theirs = Qwen3Config(**_common(shape), rms_norm_eps=1e-6, rope_theta=1e6)
    return theirs, bare.Llama(shape, 1e-6, 1e6, qk_norm=True)


def _gemma3(shape: Shape) -> tuple[Any, nn.Module]:
    from transformers import Gemma3TextConfig

    sliding = tuple((layer + 1) % 4 != 0 for layer in range(shape.layers))
    theirs = Gemma3TextConfig(
        **_common(shape),
        rms_norm_eps=1e-6,
        query_pre_attn_scalar=shape.head_dim,
        sliding_window=shape.window,
        layer_types=["sliding_attention" if s else "full_attention" for s in sliding],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )
    return theirs, bare.Gemma(shape, 1e-6, sliding)


ARCHITECTURES = {"llama": _llama, "qwen3": _qwen3, "gemma3": _gemma3}


def sides_of(name: str, shape: Shape, device: torch.device) -> tuple[Sides, Any]:
    """Build an architecture three times; the sides, and the whole model of transformers."""
    import transformers
    from transformers import AutoModelForCausalLM

    from setpoint.model import load_pretrained

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config, plain = ARCHITECTURES[name](shape)
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in theirs.parameters():
            # Norms start as ones or zeros, biases as zeros; other values show more.
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours: Any = load_pretrained(folder)
    theirs, ours, plain = (model.to(device).train() for model in (theirs, ours, plain))
    plain.load_state_dict({k: v for k, v in ours.state_dict().items() if k != "output.weight"})
    body = theirs.base_model
    return Sides(
        {"setpoint": ours, "transformers": body, "bare": plain},
        {
            "setpoint": lambda tokens: ours(tokens, head=lambda hidden, _: hidden).result,
            "transformers": lambda tokens: body(tokens, use_cache=False).last_hidden_state,
            "bare": plain,
        },
    ), theirs
