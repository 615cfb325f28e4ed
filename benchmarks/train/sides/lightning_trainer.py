"""Trainer of Lightning, used as its documentation says."""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer  # pyright: ignore[reportMissingImports]
from lightning.pytorch.loggers import CSVLogger  # pyright: ignore[reportMissingImports]
from torch.utils.data import DataLoader

from train.turns import Turns
from train.work import LOG_EVERY, WithLoss, Work


class Module(LightningModule):
    """The model, its optimizer and schedule in Lightning's form.

    Arguments:
        work: the job.
    """

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work, self.inner = work, WithLoss(work.components.model)

    def training_step(self, windows: torch.Tensor, _: int) -> torch.Tensor:
        """See `LightningModule`."""
        loss = self.inner(windows)
        self.log("loss", loss)
        return loss

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """See `LightningModule`; by default it refuses a fused optimizer under autocast."""
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)

    def configure_optimizers(self) -> Any:
        """See `LightningModule`."""
        optimizer = self.work.optimizer(self.parameters())
        scheduler = {"scheduler": self.work.scheduler(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class Turn(Callback):
    """Gives the turn away after a block.

    Arguments:
        turns: with the other sides.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def on_train_start(self, *_: Any) -> None:
        """See `Callback`."""
        self.turns.begin()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """See `Callback`."""
        self.turns.after_step()


def run(work: Work, turns: Turns) -> list[float]:
    """Train."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    module = Module(work)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu" if work.device.type == "cpu" else "gpu",
            devices=1,
            precision="bf16-mixed" if work.is_bf16 else "32-true",
            max_steps=work.updates,
            log_every_n_steps=LOG_EVERY,
            logger=CSVLogger(folder),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Turn(turns)],
        )
        trainer.fit(module, DataLoader(work.windows, batch_size=work.batch_size))
    return [loss.item() for loss in module.inner.losses]
