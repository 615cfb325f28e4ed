"""The trainers that `train.loops` compares: each trains the same job, in turns with the others."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from harness import adamw, memory_line, synchronize, training_loop
from setpoint.config.composition import compose
from setpoint.data.order import shuffled
from setpoint.model.config import TransformerConfig
from setpoint.optim.config import AdamWConfig
from setpoint.optim.schedule import Cosine
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job
from setpoint.train.loop import Callback
from setpoint.train.open import settings_of

CLIP, LOG_EVERY = 1.0, 10
FIXED = (
    "checkpoint.every=never",
    "evaluation=null",
    f"tracking.every={LOG_EVERY} steps",
    f"optimizer.clip_norm={CLIP}",
)
MODELS: dict[str, tuple[str, ...]] = {
    "tiny": (),
    "18M": ("model.dim=512", "model.layers=6", "model.heads=8"),
    # Next to no arithmetic, so that a test can run it.
    "dust": ("model.dim=16", "model.layers=1", "model.heads=2", "batch.sequence_length=16"),
}


class Windows(Dataset[Tensor]):
    """The text in windows of S + 1 tokens, in the order in which Setpoint's loader draws them.

    Arguments:
        tokens: (T,) the training text.
        order: numbers of windows.
        length: S.
    """

    def __init__(self, tokens: Tensor, order: list[int], length: int) -> None:
        self.tokens, self.order, self.length = tokens, order, length

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Tensor:
        start = self.order[index] * (self.length + 1)
        return self.tokens[start : start + self.length + 1]


@dataclass
class Work:
    """One training job.

    Arguments:
        job: its configuration.
        components: what Setpoint builds of it.
        updates: how many there are.
        windows: the data of all updates in order.
    """

    job: Job
    components: Components
    updates: int
    windows: Windows

    @property
    def batch_size(self) -> int:
        """Sequences in an update."""
        return self.job.batch.global_size

    @property
    def is_bf16(self) -> bool:
        """Whether it computes in bf16 by autocast."""
        return self.job.precision.compute == "bf16"

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Torch's AdamW with Setpoint's groups."""
        return adamw(parameters, self.job.optimizer)

    def factor(self, step: int) -> float:
        """The factor of the learning rate: a linear warm-up, then half a cosine."""
        schedule = self.job.schedule
        assert isinstance(schedule, Cosine)
        warmup, horizon = schedule.warmup.count, schedule.horizon.in_unit("steps")
        if step < warmup:
            return (step + 1) / warmup
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / (horizon - warmup))))
        return schedule.floor + (1 - schedule.floor) * cosine

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        """The same as torch has it."""
        return LambdaLR(optimizer, self.factor)


def make_work(model: str, precision: str, updates: int, device: str = "auto") -> Work:
    """Build what a side trains."""
    given = (
        *FIXED,
        *MODELS[model],
        f"duration={updates} steps",
        f"precision.compute={precision}",
        f"parallel.device={device}",
    )
    job = compose(Job, "tiny", flags=[f"--{flag}" for flag in given]).resolve()
    assert isinstance(job.model, TransformerConfig) and job.batch.accumulation == 1
    assert isinstance(job.optimizer, AdamWConfig)
    components = build_components(job)
    count = len(components.train_data)
    epochs = range(math.ceil(updates * job.batch.global_size / count))
    numbers = numpy.arange(count)
    keys = (f"windows/{job.seed}/{epoch}" for epoch in epochs)
    order = [number for key in keys for number in shuffled(key, count, numbers).tolist()]
    tokens = torch.from_numpy(components.train_data.corpus.tokens.astype("int64"))
    windows = Windows(tokens, order[: updates * job.batch.global_size], job.batch.sequence_length)
    return Work(job, components, updates, windows)


class WithLoss(nn.Module):
    """A model that returns its loss.

    Arguments:
        model: maps (B, S) tokens to (B, S, V) logits.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.losses: list[Tensor] = []

    def forward(self, windows: Tensor) -> Tensor:
        """The mean cross-entropy of (B, S + 1) windows, which is kept for the check."""
        logits = self.model(windows[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
        self.losses.append(loss.detach())
        return loss


class Turns:
    """The end of a side that trains: one process for each side, of which one runs at a time.

    A framework's own loop cannot be stopped from outside, but from a callback it can.

    Arguments:
        steps: updates in a block.
        updates: all of them.
        requests: each line lets a block run.
        answers: gets a line for each block.
    """

    def __init__(self, steps: int, updates: int, requests: TextIO, answers: TextIO) -> None:
        self.steps, self.updates = steps, updates
        self.requests, self.answers = requests, answers
        self.done = 0
        self.base = 0
        self._wall = self._cpu = 0.0

    def built(self) -> None:
        """Measure memory from here on: what the loop adds to the model and the data."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            return
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the most so far is what there is now
        self.base = memory_line("VmRSS")

    def begin(self, *_: Any, **__: Any) -> None:
        """Wait for the first turn; called right before the first update."""
        self.answer(ready=True)
        self._wait()

    def after_step(self, *_: Any, **__: Any) -> None:
        """Count an update, and let others run after the last of a block."""
        self.done += 1
        if self.done % self.steps:
            return
        synchronize(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        self.answer(wall=wall, cpu=cpu)
        if self.done < self.updates:
            self._wait()

    def finish(self, losses: list[float]) -> None:
        """Send the losses and the peak of memory."""
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
        else:
            peak = memory_line("VmHWM") - self.base
        self.answer(losses=losses, peak=peak)

    def answer(self, **values: Any) -> None:
        """Send a line."""
        print(json.dumps(values), file=self.answers, flush=True)

    def _wait(self) -> None:
        if not self.requests.readline():
            sys.exit(1)  # nobody listens any more
        self._wall, self._cpu = time.perf_counter(), time.process_time()


def setpoint(work: Work, turns: Turns) -> list[float]:
    """The loop of `setpoint train` with its callbacks."""
    losses: list[float] = []

    class Turn(Callback):
        def start(self, loop: Any) -> None:
            turns.begin()

        def after_step(self, loop: Any, result: Any) -> None:
            losses.append(result.loss)
            turns.after_step()

    with (
        settings_of(work.job),
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        training_loop(work.job, work.components, Path(folder) / "run", nowhere, [Turn()]) as loop,
    ):
        loop.run()
    return losses


def bare(work: Work, turns: Turns) -> list[float]:
    """What a careful engineer writes in plain PyTorch; it logs nothing but keeps the losses."""
    model, device = work.components.model, work.components.device
    parameters = list(model.parameters())
    optimizer = work.optimizer(parameters)
    peak, windows, size = optimizer.param_groups[0]["lr"], work.windows, work.batch_size
    losses: list[float] = []
    model.train()
    turns.begin()
    for step in range(work.updates):
        chosen = range(step * size, (step + 1) * size)
        batch = torch.stack([windows[index] for index in chosen]).to(device)
        for group in optimizer.param_groups:
            group["lr"] = peak * work.factor(step)
        with torch.autocast(device.type, torch.bfloat16, enabled=work.is_bf16):
            logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        turns.after_step()
    return losses


def hf_trainer(work: Work, turns: Turns) -> list[float]:
    """Trainer of transformers (with accelerate), used as its documentation says."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Named(WithLoss):
        def forward(self, windows: Tensor) -> Any:
            return {"loss": super().forward(windows)}

    class InOrder(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
            given: Any = train_dataset or self.train_dataset
            return SequentialSampler(given)

    class Turn(TrainerCallback):
        on_train_begin = staticmethod(turns.begin)
        on_step_end = staticmethod(turns.after_step)

    model, on = Named(work.components.model), work.components.device.type
    optimizer = work.optimizer(model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=work.updates,
            per_device_train_batch_size=work.batch_size,
            max_grad_norm=CLIP,
            bf16=work.is_bf16,
            use_cpu=on == "cpu",
            logging_steps=LOG_EVERY,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=on == "cuda",
        )
        InOrder(
            model=model,
            args=arguments,
            train_dataset=work.windows,
            data_collator=lambda windows: {"windows": torch.stack(windows)},
            optimizers=(optimizer, work.scheduler(optimizer)),
            callbacks=[Turn()],
        ).train()
    return [loss.item() for loss in model.losses]


def lightning(work: Work, turns: Turns) -> list[float]:
    """Trainer of Lightning, used as its documentation says."""
    from lightning import pytorch as library  # pyright: ignore[reportMissingImports]
    from lightning.pytorch.loggers import CSVLogger  # pyright: ignore[reportMissingImports]

    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = WithLoss(work.components.model)

        def training_step(self, windows: Tensor, _: int) -> Tensor:
            loss = self.inner(windows)
            self.log("loss", loss)
            return loss

        def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
            # By default it refuses a fused optimizer under autocast.
            torch.nn.utils.clip_grad_norm_(self.parameters(), CLIP)

        def configure_optimizers(self) -> Any:
            optimizer = work.optimizer(self.parameters())
            scheduler = {"scheduler": work.scheduler(optimizer), "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": scheduler}

    class Turn(library.Callback):
        on_train_start = staticmethod(turns.begin)
        on_train_batch_end = staticmethod(turns.after_step)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    module = Module()
    with tempfile.TemporaryDirectory() as folder:
        trainer = library.Trainer(
            accelerator="cpu" if work.components.device.type == "cpu" else "gpu",
            devices=1,
            precision="bf16-mixed" if work.is_bf16 else "32-true",
            max_steps=work.updates,
            log_every_n_steps=LOG_EVERY,
            logger=CSVLogger(folder),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Turn()],
        )
        trainer.fit(module, DataLoader(work.windows, batch_size=work.batch_size))
    return [loss.item() for loss in module.inner.losses]


class Side(NamedTuple):
    """One of the trainers.

    Arguments:
        train: gives the losses of all updates.
        package: what must be installed.
        imports: modules that `train` imports, whose memory is not counted.
    """

    train: Callable[[Work, Turns], list[float]]
    package: str = "torch"
    imports: tuple[str, ...] = ()


SIDES = {
    "setpoint": Side(setpoint),
    "bare": Side(bare),
    "HF Trainer": Side(hf_trainer, "accelerate", ("transformers.trainer",)),
    "Lightning": Side(lightning, "lightning", ("lightning.pytorch", "lightning.pytorch.loggers")),
}


def prepare(turns: Turns, side: str, model: str, precision: str, device: str) -> Work:
    """Import and build what a side needs, and measure memory from there on."""
    for module in SIDES[side].imports:
        import_module(module)
    work = make_work(model, precision, turns.updates, device)
    turns.built()
    return work


def main(side: str, model: str, precision: str, steps: str, updates: str, device: str) -> None:
    """Train in turns with others; requests come in and answers go out as lines."""
    # Frameworks print; what they print goes nowhere, and answers have a file of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    turns = Turns(int(steps), int(updates), sys.stdin, answers)
    work = prepare(turns, side, model, precision, device)
    turns.finish(SIDES[side].train(work, turns))


if __name__ == "__main__":
    main(*sys.argv[1:])
