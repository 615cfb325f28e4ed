"""Models, runs and jobs that are small enough for a test."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from setpoint.config import resolve
from setpoint.infer.config import Inference, InferenceWeights
from setpoint.model.config import TransformerConfig
from setpoint.model.initialize import initialize


def small_model(vocab_size: int = 40, **fields: Any) -> nn.Module:
    """A transformer with weights large enough for each token to matter."""
    small: dict[str, Any] = {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "init_std": 0.3}
    chosen = {"max_sequence_length": 48, **small, **fields}
    config = resolve(TransformerConfig(**{k: v for k, v in chosen.items() if v is not None}))
    model = config.build(vocab_size=vocab_size)
    initialize(model, 0)
    return model.eval()


class Successor(nn.Module):
    """Says with certainty that the next token is the last one plus how many it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, bool]] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen.append((tokens.shape[1], self.training))
        following = (tokens + tokens.shape[1]) % 50
        return nn.functional.one_hot(following, 50).float() * 100


def inference(path: Path | str, **sections: Any) -> Inference:
    """A job with the weights of a run, a checkpoint or a directory."""
    return Inference(weights=InferenceWeights(path=str(path)), **sections)


def folder_of(path: Path) -> dict[str, bytes]:
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}
