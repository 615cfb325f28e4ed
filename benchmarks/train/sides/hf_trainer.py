"""Trainer of transformers (with accelerate), used as its documentation says."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from train.turns import Turns
from train.work import LOG_EVERY, WithLoss, Work


class Named(WithLoss):
    """A model whose output has a field `loss`."""

    def forward(self, windows: torch.Tensor) -> Any:
        """The loss by name."""
        return {"loss": super().forward(windows)}


class InOrder(Trainer):
    """Takes the windows as they come, as all sides do."""

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        given: Any = train_dataset or self.train_dataset
        return SequentialSampler(given)


class Turn(TrainerCallback):
    """Gives the turn away after a block.

    Arguments:
        turns: with the other sides.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """See `TrainerCallback`."""
        self.turns.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """See `TrainerCallback`."""
        self.turns.after_step()


def run(work: Work, turns: Turns) -> list[float]:
    """Train."""
    model = Named(work.components.model)
    optimizer = work.optimizer(model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=work.updates,
            per_device_train_batch_size=work.batch_size,
            max_grad_norm=1.0,
            bf16=work.is_bf16,
            use_cpu=work.device.type == "cpu",
            logging_steps=LOG_EVERY,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=work.device.type == "cuda",
        )
        trainer = InOrder(
            model=model,
            args=arguments,
            train_dataset=work.windows,
            data_collator=lambda windows: {"windows": torch.stack(windows)},
            optimizers=(optimizer, work.scheduler(optimizer)),
            callbacks=[Turn(turns)],
        )
        trainer.train()
    return [loss.item() for loss in model.losses]
