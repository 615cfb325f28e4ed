"""A loop in the manner of litgpt's pretraining, on Lightning Fabric.

Written anew from how that project arranges its loop (its README and litgpt/pretrain.py at
github.com/Lightning-AI/litgpt, 2025): Fabric wraps model, optimizer and data; the rate is
set in each iteration; backward goes through Fabric, without synchronizing while gradients add up;
a running mean of torchmetrics takes each loss, and every 10 updates it is fetched and goes, with a
throughput monitor's numbers, into a line and a log. None of its code is here; model and loss are
those of all sides, in place of its own in chunks.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from typing import Any

from lightning.fabric import Fabric  # pyright: ignore[reportMissingImports]
from lightning.fabric.loggers import CSVLogger  # pyright: ignore[reportMissingImports]
from lightning.fabric.utilities.throughput import ThroughputMonitor  # pyright: ignore[reportMissingImports]
from torch.utils.data import DataLoader
from torchmetrics.aggregation import RunningMean  # pyright: ignore[reportMissingImports]

from train.turns import Turns
from train.work import LOG_EVERY, WithLoss, Work


def run(work: Work, turns: Turns) -> list[float]:
    """Train.

    Arguments:
        work: the job.
        turns: with the other sides.

    Returns:
        the loss of each update.
    """
    warnings.filterwarnings("ignore", module="lightning")
    plain = WithLoss(work.components.model)
    with tempfile.TemporaryDirectory() as folder:
        fabric: Any = Fabric(
            accelerator="cpu" if work.device.type == "cpu" else "gpu",
            devices=1,
            precision="bf16-mixed" if work.is_bf16 else "32-true",
            loggers=[CSVLogger(folder)],
        )
        fabric.launch()
        model = fabric.setup(plain)
        optimizer = fabric.setup_optimizers(work.optimizer(plain.parameters()))
        loader = fabric.setup_dataloaders(DataLoader(work.windows, batch_size=work.batch_size))
        monitor = ThroughputMonitor(fabric, window_size=5)
        every = work.job.batch.accumulation
        mean = RunningMean(window=every, sync_on_compute=False).to(fabric.device)
        tokens, flops = work.batch_size * work.windows.length, 0.0
        flops = 6.0 * sum(p.numel() for p in plain.parameters()) * tokens
        peak = work.optimizer_options.lr
        model.train()
        turns.begin()
        began = time.perf_counter()
        for number, windows in enumerate(loader):
            rate = peak * work.factor(number // every)
            for group in optimizer.param_groups:
                group["lr"] = rate
            at = time.perf_counter()
            adding = (number + 1) % every != 0
            with fabric.no_backward_sync(model, enabled=adding):
                loss = model(windows)
                fabric.backward(loss / every)
            mean.update(loss.detach())
            if not adding:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
            if (number + 1) % (LOG_EVERY * every) == 0:
                now, count = time.perf_counter(), number + 1
                row = {"loss": mean.compute().item(), "seconds": now - at, "lr": rate}
                monitor.update(
                    time=now - began,
                    flops=flops * LOG_EVERY,
                    batches=count,
                    samples=count * work.batch_size,
                    lengths=count * tokens,
                )
                fabric.print(f"iteration {count}: {row}")
                row.update(monitor.compute())
                fabric.log_dict(row, step=count)
            if not adding:
                turns.after_step()
    return [loss.item() for loss in plain.losses]
