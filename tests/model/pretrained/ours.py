"""Small models of ours and directories in the format of Hugging Face, without transformers."""

import json
from pathlib import Path
from typing import Any

import torch

from setpoint.config import resolve
from setpoint.model import save_pretrained
from setpoint.model.config import HuggingFaceConfig, TransformerConfig
from setpoint.model.initialize import initialize

SMALL: dict[str, Any] = {
    "max_sequence_length": 32, "dim": 16, "layers": 2, "heads": 2, "ffn_dim": 24, "vocab_size": 20,
}  # fmt: skip


def model(seed: int = 0, **fields: Any) -> Any:
    """A transformer with random weights; fields of None stay as they are by default."""
    given = {name: value for name, value in {**SMALL, **fields}.items() if value is not None}
    config = resolve(TransformerConfig(**given))
    built = config.build(vocab_size=config.vocab_size or 20)
    initialize(built, seed)
    with torch.no_grad():
        for parameter in built.parameters():
            # Else norms and biases would be the same in all.
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return built.eval()


def as_transformers(folder: Path) -> Any:
    """The section of a model of transformers that starts from the weights of a directory."""
    return resolve(
        HuggingFaceConfig(config=str(folder), pretrained=str(folder), max_sequence_length=16)
    )


def directory(folder: Path, max_shard_size: int = 10**9, **fields: Any) -> Path:
    """A model in the format of Hugging Face."""
    return save_pretrained(model(**fields), folder, max_shard_size=max_shard_size)


def change_config(folder: Path, **keys: Any) -> None:
    """Set keys of a config.json; ... removes one."""
    path = folder / "config.json"
    merged = {**json.loads(path.read_text()), **keys}
    path.write_text(json.dumps({k: v for k, v in merged.items() if v is not ...}))


def rewrite(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write model.safetensors with the safetensors library; tensors of None are taken out."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    merged = {**load_file(path), **tensors}
    save_file({k: v for k, v in merged.items() if v is not None}, path, {"format": "pt"})
