"""Run on each rank by sharded_ranks.py: stages under PyTorch's own schedules."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F

from .families import DENSE
from .parts import part
from .small import VOCAB, small_model

LAYERS = 3
MICRO_BATCHES = 4


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def scheduled(rank: int, world: int, name: str, kind: Any) -> None:
    # PyTorch 2.11 takes no results that are views, as logits without the padded ones are.
    changes: dict[str, Any] = {**DENSE[name], "layers": LAYERS, "vocab_multiple_of": 1}
    generator = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(VOCAB, (2, MICRO_BATCHES, 9), generator=generator)
    whole = small_model(seed=3, **changes)
    expected = loss(whole(tokens), targets)
    expected.backward()

    layers = (0, 1) if rank == 0 else (2,)
    model: nn.Module = part(layers, seed=3, **changes)
    stage = PipelineStage(model, rank, world, torch.device("cpu"))
    schedule = kind(stage, MICRO_BATCHES, loss_fn=loss)
    losses: list[Tensor] = []
    if rank == 0:
        schedule.step(tokens)
    else:
        schedule.step(target=targets, losses=losses)
        torch.testing.assert_close(torch.stack(losses).mean(), expected.detach())
    for key, parameter in model.named_parameters():
        other = whole.get_parameter(key).grad
        if key == "embedding.weight" and changes.get("tie_embeddings"):
            continue  # the sum over two stages; see test_parts.py
        torch.testing.assert_close(parameter.grad, other, rtol=1e-4, atol=1e-6, msg=key)


def stages(rank: int, world: int) -> None:
    for name in ("llama", "gemma3", "gpt2"):
        for kind in (ScheduleGPipe, Schedule1F1B):
            scheduled(rank, world, name, kind)
