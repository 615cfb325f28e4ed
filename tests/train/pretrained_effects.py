"""The rows of `test_config_effects.py` for weights to start from and models of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from setpoint.config.values.user_code import allow_imports
from setpoint.model import load_pretrained, save_pretrained
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.run import train

from .small import small_job

THEIRS = ("model=huggingface", "model.config={tmp}/theirs")
OWN = ("model=import", f"model.target={__name__}.Own")
KEYS = {"model_type": "gpt2", "vocab_size": 257, "n_embd": 16, "n_layer": 1, "n_head": 2}


allow_imports(__name__)


class Own(torch.nn.Embedding):
    """A table of logits."""

    def __init__(self, vocab_size: int, dropout: float) -> None:
        super().__init__(vocab_size, vocab_size)


def implementation(job: Job) -> str:
    """What transformers computes attention by."""
    model: Any = build_components(job).model
    return model.model.config._attn_implementation


START = ("model.pretrained={tmp}/weights",)
ADAPTED = (*START, "model.adapters=[{path: {tmp}/lora-a}]")
# The override, the function that sees its effect, and what is set on both sides.
PRETRAINED_ROWS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "TransformerConfig.pretrained": ("model.pretrained={tmp}/weights", "weights", ()),
    "TransformerConfig.adapters": ("model.adapters=[{path: {tmp}/lora-a}]", "weights", START),
    "PretrainedAdapter.path": ("model.adapters=[{path: {tmp}/lora-b}]", "weights", ADAPTED),
    "PretrainedAdapter.weight": ("model.adapters.0.weight=0.5", "weights", ADAPTED),
    "ImportedModel.pretrained": ("model.pretrained={tmp}/own", "weights", OWN),
    "HuggingFaceConfig.pretrained": ("model.pretrained={tmp}/theirs", "weights", THEIRS),
    "HuggingFaceConfig.config": ("model.config={tmp}/narrow", "weights", THEIRS),
    "HuggingFaceConfig.overrides": ("model.overrides.n_layer=2", "weights", THEIRS),
    "HuggingFaceConfig.attention_backend": (
        "model.attention_backend=eager",
        "implementation",
        THEIRS,
    ),
    "HuggingFaceConfig.max_sequence_length": (
        "model.max_sequence_length=64",
        "context",
        THEIRS,
    ),
}


def prepare(folder: Path, name: str) -> None:
    """Make the models that a row names.

    Arguments:
        folder: what `{tmp}` stands for.
        name: of the row.
    """
    if name in ("TransformerConfig.pretrained", "TransformerConfig.adapters") or "Adapter" in name:
        if (folder / "weights").exists():
            return
        for number, place in enumerate(("lora-a", "lora-b")):
            adapter_of_peft(folder / place, number)
        small = ("duration=1 steps", "model.dropout=0", "seed=5")
        run = train(small_job(folder / "source", *small)).directory
        save_pretrained(load_pretrained(run), folder / "weights")
    elif name == "ImportedModel.pretrained":
        small = ("duration=1 steps", "model.dropout=0", "seed=5", *OWN)
        run = train(small_job(folder / "source", *small)).directory
        run.rename(folder / "own")
    elif name.startswith("HuggingFaceConfig") and not (folder / "theirs").exists():
        theirs(folder / "theirs", {})
        theirs(folder / "narrow", {"n_embd": 8})


def adapter_of_peft(folder: Path, seed: int) -> None:
    """An adapter of the first query matrix of the small model, as PEFT writes it."""
    from safetensors.torch import save_file

    drawn = torch.Generator().manual_seed(seed)
    before = "base_model.model.model.layers.0.self_attn.q_proj.lora"
    shapes = {"A": (1, 16), "B": (16, 1)}
    folder.mkdir()
    save_file(
        {f"{before}_{n}.weight": torch.randn(s, generator=drawn) for n, s in shapes.items()},
        folder / "adapter_model.safetensors",
    )
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 1}')


def theirs(folder: Path, keys: dict[str, Any]) -> None:
    """A small model that transformers wrote."""
    import transformers
    from torch.random import fork_rng

    with fork_rng(devices=[]):
        torch.manual_seed(5)  # not what a job of the same seed would draw
        config = transformers.GPT2Config(**{**KEYS, **keys, "bos_token_id": 0, "eos_token_id": 0})
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "gpt2"
