"""What the configuration alone tells of attention: windows, scale, and what backends can do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from setpoint.config import Problem
from setpoint.model.attention.config import Backend, Kind

if TYPE_CHECKING:
    from setpoint.model.config import Transformer
    from setpoint.model.config import Transformer as TransformerConfig

BACKENDS: tuple[Backend, ...] = get_args(Backend)
FLASH_KERNELS = ("sdpa_flash", "varlen", "flash_attention")
LARGEST_FLASH_HEAD = 256
GPU_ONLY = ("varlen", "flash_attention", "sdpa_efficient", "sdpa_cudnn")
EVERYWHERE: tuple[Backend, ...] = ("sdpa", "eager")


def chosen(config: Transformer) -> Backend:
    """Find the backend that auto stands for.

    Returns:
        the backend; sdpa for auto, or eager where scores are capped, which sdpa cannot.
    """
    if config.attention_backend != "auto":
        return config.attention_backend
    return "sdpa" if config.attention_soft_cap is None else "eager"


def backend_problems(config: Transformer) -> Iterator[Problem]:
    """Find what the model needs and its backend cannot do on any device."""
    for what, field in _lacking(config, config.attention_backend):
        yield Problem(
            "attention_backend",
            f"{config.attention_backend} {what}",
            valid=able(config),
            also=(field,),
        )


def placement_problems(
    config: Transformer, device: str, compute: str, *, training: bool
) -> Iterator[Problem]:
    """Find what the backend of a model cannot do on a kind of device, wherever that is.

    Arguments:
        device: "cpu" or "cuda"; "auto" leaves open which, and with it what needs a GPU.
        compute: the number format of queries, keys and values: "fp32", "bf16" or "fp16".
    """
    reason = unplaced(chosen(config), device, compute, training)
    if reason is not None:
        valid = ("auto", *able(config, EVERYWHERE))
        yield Problem("model.attention_backend", reason, valid=valid, also=("parallel.device",))


def unplaced(name: Backend, device: str, compute: str, training: bool) -> str | None:
    """Find why a backend does not run on a kind of device.

    Arguments:
        device, compute, training: as for `placement_problems`.

    Returns:
        the reason in words; None if there is none that needs no look at the machine.
    """
    if name in GPU_ONLY and device not in ("cuda", "auto"):
        return f"it needs a GPU, and the device is {device}"
    if name == "flex" and device == "cpu" and training:
        return "PyTorch has no backward pass of it for the CPU"
    if name in ("varlen", "flash_attention") and compute == "fp32":
        return "it computes in bf16 or fp16; set precision.compute"
    return None


def determinism_problems(config: Transformer) -> Iterator[Problem]:
    """Find whether a model's backend gives other sums in each run, although it must not.

    The flash and memory-efficient kernels and the package flash-attn have deterministic backward
    passes, which are taken then; those of eager, sdpa_math and flex are so by themselves, and sdpa
    leaves cuDNN's kernel out.
    """
    if config.attention_backend == "sdpa_cudnn":
        yield Problem(
            "model.attention_backend",
            "cuDNN's attention is not deterministic, and PyTorch refuses it",
            valid=("auto", *able(config, EVERYWHERE)),
            also=("deterministic",),
        )


def able(config: Transformer, among: tuple[Backend, ...] = BACKENDS) -> list[Backend]:
    """Find the backends that can do what a model needs, on some device."""
    return [name for name in among if not any(_lacking(config, name))]


def _lacking(config: Transformer, name: Backend) -> Iterator[tuple[str, str]]:
    """What a backend cannot do of what a model needs, and the field that asks for it."""
    if config.attention_soft_cap is not None and (name.startswith("sdpa") or name == "varlen"):
        yield "cannot cap scores", "attention_soft_cap"
    if config.attention_dropout and name in ("flex", "varlen"):
        yield "cannot drop attention weights", "attention_dropout"
    if name not in FLASH_KERNELS:
        return
    if config.mla is not None:
        yield (
            "needs keys and values of one size, which latent attention has not",
            "mla.value_head_dim",
        )
    elif config.head_dim > LARGEST_FLASH_HEAD:
        yield f"takes heads of up to {LARGEST_FLASH_HEAD} components", "head_dim"
    elif name == "varlen" and config.head_dim % 8:
        yield "takes heads of a multiple of 8 components", "head_dim"


def kind_of(config: TransformerConfig, layer: int) -> Kind:
    """Find what a layer attends to.

    Arguments:
        layer: the index of the layer in the whole model, from 0.
    """
    return config.attention_pattern[layer % len(config.attention_pattern)]


def kinds_of(config: TransformerConfig) -> list[Kind]:
    """Find the kinds that the layers of a model are of."""
    return list(dict.fromkeys(kind_of(config, layer) for layer in range(config.layers)))


def attention_scale(config: TransformerConfig) -> float | None:
    """Find the scale of attention, where it is not the usual one.

    Under muP products of queries and keys, which are correlated after training, are scaled by
    sqrt(base_head_dim) / head_dim (Yang et al., 2022).

    Returns:
        the factor; None for 1 / sqrt(size of queries and keys).
    """
    if config.attention_scale is not None:
        return config.attention_scale
    if config.mup is not None and config.mup.base_head_dim is not None:
        return math.sqrt(config.mup.base_head_dim) / query_size(config)
    return None


def query_size(config: TransformerConfig) -> int:
    """Count the components of one head of queries and keys."""
    if config.mla is not None:
        return config.mla.nope_head_dim + config.mla.rope_head_dim
    return config.head_dim
