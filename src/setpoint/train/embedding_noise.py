"""Uniform noise on token embeddings in training (NEFTune; Jain et al., 2023)."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from setpoint.config import RunError, SetpointError
from setpoint.model.config import TransformerConfig
from setpoint.parallel.determinism import hashed
from setpoint.shapes.protocols import Embeds

if TYPE_CHECKING:
    from setpoint.model.config import ModelConfig
    from setpoint.shapes.batch import Batch, SequenceParts
    from setpoint.shapes.peers import Peers


def noise_alpha(model: ModelConfig) -> float:
    """Alpha of the noise on the output of a model's token embedding.

    In transformers, noise is added to the output of the embedding module. Gemma's module scales by
    sqrt(dim) itself, before the noise; other families scale after it, as Setpoint's transformer
    does for all: for a scale of sqrt(dim), alpha is divided by it.
    """
    alpha = model.embedding_noise
    if isinstance(model, TransformerConfig):
        scale = model.embedding_scale
        return alpha / scale if math.isclose(scale, math.sqrt(model.dim)) else alpha
    return alpha


class EmbeddingNoise:
    """Adds alpha * U(-1, 1) / sqrt(n * dim) to the embeddings of a row of n tokens.

    The noise of a row is drawn from the seed, the step and the row's tokens, so it is equal for any
    division of a batch over ranks and micro-batches, and checkpoints need no generator state. Equal
    rows of a step have equal noise.

    Arguments:
        model: this rank's part, divided among tensor-parallel ranks.
        device: the device of the forward pass.
        sequence: the positions of sequences on this rank.

    Raises:
        SetpointError: the model does not name its token embedding.
    """

    def __init__(
        self,
        alpha: float,
        seed: int,
        model: nn.Module,
        device: torch.device,
        sequence: SequenceParts,
    ) -> None:
        self.alpha, self.seed, self.device, self.sequence = alpha, seed, device, sequence
        self.step = 0
        """Number of completed steps, set by the training loop."""
        self.values: Tensor | None = None
        """(B, S, dim) noise of the current micro-batch at the positions of this rank."""
        if not isinstance(model, Embeds):
            raise SetpointError(
                f"model.embedding_noise: the model ({type(model).__name__}) does not name its "
                f"token embedding\nValid: 0, or a model with the attribute token_embedding"
            )
        self.embedding = model.token_embedding
        if self.embedding is not None:  # a later pipeline stage has none
            self.embedding.register_forward_hook(self._add)

    def draw(self, batch: Batch, length: int) -> Tensor | None:
        """Noise of a micro-batch that is still on the host.

        Arguments:
            length: number of positions of a row on this rank, before tensor-parallel ranks divide
                them, with padding.
        """
        if self.embedding is None:
            return None
        device, dim = self.device, self.embedding.embedding_dim
        size = (len(batch.inputs), length * self.sequence.size, dim)
        noise = torch.zeros(size, device=device)
        generator = torch.Generator(device)
        for row, count in enumerate(row_lengths(batch)):
            digest = hashlib.sha256(batch.inputs[row, :count].numpy().tobytes()).hexdigest()
            generator.manual_seed(hashed(f"{self.seed}/embeddings/step {self.step}/{digest}"))
            drawn = torch.rand(count, dim, generator=generator, device=device)
            noise[row, :count] = (2 * drawn - 1) * (self.alpha / math.sqrt(max(1, count) * dim))
        noise = self.sequence.take(noise)
        peers: Peers | None = getattr(self.embedding, "_peers", None)
        divides = peers is not None and getattr(self.embedding, "_sequence", False)
        return peers.part(noise, 1) if peers is not None and divides else noise

    def _add(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        if not module.training or self.values is None:
            return None
        if output.shape != self.values.shape:
            raise RunError(
                "model.embedding_noise: the model computes the documents of a row in rows of their "
                "own\nValid: 0, or data.packing.isolate = false"
            )
        return output + self.values.to(output.dtype)


def row_lengths(batch: Batch) -> list[int]:
    """Number of tokens in each row, without the padding at its end."""
    rows, length = batch.inputs.shape
    for places in (batch.documents, batch.positions):
        if places is not None:
            return (places >= 0).sum(1).tolist()
    if batch.lengths is None:
        return [length] * rows
    starts = batch.lengths.starts
    return [int(starts[starts > row * length].min()) - row * length for row in range(rows)]
