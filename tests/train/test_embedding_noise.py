"""Noise on embeddings: the formula of transformers, its keys, and where it is not added."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from setpoint.config import RunError, resolve
from setpoint.model import load_pretrained
from setpoint.model.huggingface.builder import load_from
from setpoint.shapes.batch import WHOLE, Batch
from setpoint.train.build.components import build_components
from setpoint.train.embedding_noise import EmbeddingNoise, noise_alpha
from setpoint.train.run import train

from ..model.pretrained.ours import as_transformers
from ..model.pretrained.theirs import CASES, VOCAB, make
from ..support.snapshots import refused
from .small import assert_same_run, small_job

ROWS, LENGTH, DIM, ALPHA = 2, 64, 48, 5.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(100, DIM)


def noise_of(model: nn.Module, step: int = 0) -> EmbeddingNoise:
    noise = EmbeddingNoise(ALPHA, 7, model, torch.device("cpu"), WHOLE)
    noise.step = step
    return noise


def batch_of(rows: torch.Tensor, positions: torch.Tensor | None = None) -> Batch:
    return Batch(rows, rows, rows.numel(), rows.numel(), rows.numel(), positions=positions)


def drawn(batch: Batch, step: int = 0) -> torch.Tensor:
    noise = noise_of(Model(), step).draw(batch, batch.inputs.shape[1])
    assert noise is not None
    return noise


TOKENS = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % 100


def test_noise_has_the_bounds_and_the_spread_of_that_of_transformers() -> None:
    from transformers.integrations.neftune import neftune_post_forward_hook

    embedding: Any = nn.Embedding(100, DIM)
    embedding.neftune_noise_alpha = torch.tensor(ALPHA)
    zeros = torch.zeros(ROWS, LENGTH, DIM)
    expected = neftune_post_forward_hook(embedding, None, zeros)
    noise, bound = drawn(batch_of(TOKENS)), ALPHA / math.sqrt(LENGTH * DIM)
    assert bound > noise.abs().max() > 0.999 * bound
    assert bound > expected.abs().max() > 0.999 * bound
    torch.testing.assert_close(noise.std(), expected.std(), rtol=0.03, atol=0)
    assert noise.mean().abs() < 0.03 * bound


def test_rows_are_scaled_by_their_tokens_and_keyed_by_them_and_the_step() -> None:
    positions = torch.arange(LENGTH).repeat(ROWS, 1)
    positions[0, 9:] = -1
    padded = torch.where(positions < 0, 0, TOKENS)
    noise = drawn(batch_of(padded, positions))
    assert not noise[0, 9:].any()
    bound = ALPHA / math.sqrt(9 * DIM)
    assert bound > noise[0].abs().max() > 0.98 * bound
    # A row has the same noise in any micro-batch, whatever its padding.
    assert torch.equal(noise[0, :9], drawn(batch_of(TOKENS[:1, :9]))[0])
    assert torch.equal(noise[1], drawn(batch_of(TOKENS[[1, 0]]))[0])
    assert not torch.equal(noise[1], drawn(batch_of(TOKENS), step=1)[1])


def test_the_embedding_has_noise_in_training_only() -> None:
    model = Model()
    noise = noise_of(model)
    noise.values = noise.draw(batch_of(TOKENS), LENGTH)
    table = model.token_embedding
    torch.testing.assert_close(table(TOKENS), table.weight[TOKENS] + noise.values)
    assert torch.equal(model.eval().token_embedding(TOKENS), table.weight[TOKENS])
    model.train()
    with refused(RunError):
        table(TOKENS.view(1, -1))


@pytest.mark.parametrize("family", ["gemma", "granite"])
@pytest.mark.parametrize("kind", ["transformer", "huggingface"])
def test_noise_is_added_to_the_embeddings_that_transformers_scales(
    family: str, kind: str, tmp_path: Path
) -> None:
    theirs = make(*CASES[family])
    theirs.save_pretrained(tmp_path / "weights")
    section: Any = as_transformers(tmp_path / "weights")
    if kind == "transformer":
        model: Any = load_pretrained(tmp_path / "weights")
        section = model.config
    else:
        model = section.build(vocab_size=VOCAB)
        load_from(model, tmp_path / "weights")
    draft = section.evolve()
    draft.embedding_noise = ALPHA
    noise = EmbeddingNoise(noise_alpha(resolve(draft)), 7, model, torch.device("cpu"), WHOLE)
    tokens = torch.arange(2 * 12).view(2, 12) % VOCAB
    noise.values = noise.draw(batch_of(tokens), 12)
    holder = Model()
    holder.token_embedding = nn.Embedding(1, model.token_embedding.embedding_dim)
    values = noise_of(holder).draw(batch_of(tokens), 12)
    assert values is not None
    theirs.eval()
    table = theirs.get_input_embeddings().weight[tokens]
    scale = table.shape[-1] ** 0.5 if family == "gemma" else 1.0  # Granite's class scales these
    expected = theirs(inputs_embeds=table * scale + values, use_cache=False).logits
    torch.testing.assert_close(model.train()(tokens), expected, rtol=1e-4, atol=1e-5)


def test_a_model_that_does_not_name_its_embedding_is_refused(tmp_path: Path) -> None:
    flags = ("model=import", "model.target=torch.nn.Embedding", "model.num_embeddings=257",
             "model.embedding_dim=257")  # fmt: skip
    with refused():
        build_components(small_job(tmp_path, *flags, "model.embedding_noise=5"))


def test_a_resumed_run_draws_the_noise_of_the_uninterrupted_one(tmp_path: Path) -> None:
    job = small_job(tmp_path, "model.embedding_noise=5", "duration=8 steps")
    oracle, run = tmp_path / "whole", tmp_path / "cut"
    train(job, directory=oracle)
    for until in (4, None):
        train(job, directory=run, until=until)
    assert_same_run(run, oracle)
