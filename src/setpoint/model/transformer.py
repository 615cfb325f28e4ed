"""The decoder-only transformer."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from setpoint.model.block import Block
from setpoint.model.initialize import Initializer, Normal
from setpoint.model.norm import RMSNorm
from setpoint.model.rope import rotation

if TYPE_CHECKING:
    from setpoint.model.config import Transformer as TransformerConfig


class Transformer(nn.Module):
    """Predict each next token from those before it.

    embedding -> layers -> norm -> output. Nothing but the residual stream passes from layer to
    layer, and positions are explicit, so that the parts can be placed on different devices.
    Layers are kept by name: when some are taken away the others keep their names, and with
    the names their initialization and their place in checkpoints.

    Arguments:
        config: the resolved configuration of the model.
        vocab_size: number of different tokens, from the tokenizer.
    """

    def __init__(self, config: "TransformerConfig", *, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.layers = nn.ModuleDict({str(index): Block(config) for index in range(config.layers)})
        self.norm = RMSNorm(config.dim, config.norm_eps)
        # A tied output is no second name for the embedding: shared parameters come apart on the
        # way through the meta device, and safetensors refuses to store them.
        self.output = (
            None if config.tie_embeddings else nn.Linear(config.dim, vocab_size, bias=False)
        )

    def initializers(self) -> dict[str, Initializer]:
        """Return how the embedding and the output start; the layers speak for themselves.

        Returns:
            rules by the name of the parameter, relative to this module.
        """
        normal = Normal(self.config.init_std)
        rules: dict[str, Initializer] = {"embedding.weight": normal}
        if self.output is not None:
            rules["output.weight"] = normal
        return rules

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Compute the logits of every next token.

        Arguments:
            tokens: (B, S) int64.
            positions: (S,) or (B, S) integers for the rotary embedding; 0 .. S - 1 if None.

        Returns:
            (B, S, V) logits in the compute dtype.

        Raises:
            ValueError: the sequence is longer than max_sequence_length.
        """
        if tokens.shape[1] > self.config.max_sequence_length:
            raise ValueError(
                f"a sequence of {tokens.shape[1]} tokens is longer than "
                f"max_sequence_length = {self.config.max_sequence_length}"
            )
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        rotary = rotation(positions, self.config.head_dim, self.config.rope_base)
        x = self.embedding(tokens)
        for layer in self.layers.values():
            x = layer(x, rotary)
        x = self.norm(x)
        return F.linear(x, self.embedding.weight) if self.output is None else self.output(x)
