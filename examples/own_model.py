"""A model and a loss with fields of their own; own_model.toml trains them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import setpoint as sp
from setpoint.loss.config import LossConfig
from setpoint.loss.cross_entropy import LossOutput
from setpoint.model.config import ModelConfig
from setpoint.shapes.batch import IGNORE_INDEX


class LastTokens(nn.Module):
    """Predicts a token from the embeddings of the last ones (Bengio et al., 2003)."""

    class Config(ModelConfig, type="last_tokens"):
        dim: int = sp.field(default=32, ge=1)
        """Width of an embedding."""
        context: int = sp.field(default=8, ge=1, le=64)
        """Number of tokens that a prediction depends on."""
        hidden: int = sp.field(default=256, ge=1)
        """Width of the hidden layer."""

    def __init__(self, config, *, vocab_size: int) -> None:
        super().__init__()
        self.context = config.context
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.hidden = nn.Linear(config.dim * config.context, config.hidden)
        self.output = nn.Linear(config.hidden, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, S, V) of tokens (B, S)."""
        embedded = F.pad(self.embedding(tokens), (0, 0, self.context - 1, 0))  # (B, S + C - 1, D)
        windows = embedded.unfold(1, self.context, 1).flatten(2)  # (B, S, D * C)
        return self.output(torch.tanh(self.hidden(windows)))


class Smoothed:
    """Cross-entropy with label smoothing (Szegedy et al., 2016)."""

    class Config(LossConfig, type="smoothed"):
        smoothing: float = sp.field(default=0.05, ge=0, lt=1)
        """Share of the target distribution that all tokens divide."""

    def __init__(self, config) -> None:
        self.smoothing = config.smoothing

    def __call__(self, logits: Tensor, targets: Tensor) -> LossOutput:
        flat, labels = logits.flatten(0, 1).float(), targets.flatten()
        options = {"ignore_index": IGNORE_INDEX, "reduction": "sum"}
        plain = F.cross_entropy(flat, labels, **options)
        smoothed = F.cross_entropy(flat, labels, label_smoothing=self.smoothing, **options)
        return LossOutput(smoothed, plain.detach())
