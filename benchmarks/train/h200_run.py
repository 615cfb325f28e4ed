"""One run of `train.h200` in a process of its own: `python -m train.h200_run CELL SIDE ...`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from setpoint.train import prepare_threads

prepare_threads()  # as `setpoint train` does, before torch is imported

import torch  # noqa: E402

import setpoint.presets  # noqa: E402, F401 - registers the presets
from setpoint.model.config import Transformer  # noqa: E402
from setpoint.model.flops import FORMULAS, training_flops  # noqa: E402
from setpoint.optim.config import AdamW  # noqa: E402
from setpoint.track.accelerators import peak_of  # noqa: E402
from setpoint.train.build.components import Components, build_components  # noqa: E402
from setpoint.train.build.process import settings_of  # noqa: E402
from setpoint.train.callback import Callback  # noqa: E402
from setpoint.train.config import Job  # noqa: E402
from setpoint.train.step.loop import Loop, StepResult  # noqa: E402
from setpoint.train.step.position import Position  # noqa: E402
from support.session import training_loop  # noqa: E402
from train.h200_cells import job_of  # noqa: E402

CLOCKS = "clocks.sm,clocks.mem,power.draw,temperature.gpu"


class Steps(Callback):
    """Times each update with all that happens around it.

    Arguments:
        device: that is waited for.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def start(self, loop: Loop) -> None:
        """See `Callback.start`."""
        self.begin()

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """See `Callback.after_step`."""
        self.take(result.loss)

    def begin(self) -> None:
        """Start the clock."""
        wait(self.device)
        self._at = time.perf_counter()

    def take(self, loss: float) -> None:
        """Stop the clock, and start it again.

        Arguments:
            loss: of the update.
        """
        wait(self.device)
        now = time.perf_counter()
        self.seconds.append(now - self._at)
        self.losses.append(loss)
        self._at = time.perf_counter()


def run_setpoint(job: Job, parts: Components, steps: Steps) -> None:
    """Train by the loop of `setpoint train` with its callbacks.

    Arguments:
        job: the resolved configuration.
        parts: freshly built.
        steps: times the updates.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        training_loop(job, parts, Path(folder) / "run", nowhere, [steps]) as loop,
    ):
        loop.run()


def run_bare(job: Job, parts: Components, steps: Steps) -> None:
    """Train by a plain loop: the same model, loss, checkpointing and compiler, torch's AdamW.

    With a master copy the optimizer is Setpoint's, as a plain loop has none.

    Arguments:
        job: the resolved configuration.
        parts: freshly built.
        steps: times the updates.
    """
    options = job.optimizer
    assert isinstance(options, AdamW)
    model, device, objective = parts.model.train(), parts.device, parts.objective
    parameters = [p for p in model.parameters() if p.requires_grad]
    own = job.precision.master is None
    if own:
        groups: list[dict[str, Any]] = [
            {
                "params": [p for p in parameters if p.ndim >= 2],
                "weight_decay": options.weight_decay,
            },
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            groups, lr=options.lr, betas=options.betas, eps=options.eps, fused=True
        )
        del parts.optimizer
    else:
        optimizer = parts.optimizer
    autocast = job.precision.compute == "bf16" and job.precision.params == "fp32"
    tokens = job.batch.global_size * job.batch.sequence_length
    updates = int(job.duration.in_unit("steps") or 0)
    steps.begin()
    for step in range(updates):
        rate = options.lr * parts.schedule.factor(Position(step=step))
        for group in optimizer.param_groups:
            group["lr"] = rate
        sums: list[torch.Tensor] = []
        for taken in parts.feed.take().batches:
            batch = taken.to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                output, _, _ = objective(batch)
            share = output.total / tokens
            share.backward()
            sums.append(share.detach())
        if not own:
            parts.weights.grads_to_master()
            parameters = parts.weights.parameters()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if not own:
            parts.weights.master_to_params()
        optimizer.zero_grad(set_to_none=True)
        steps.take(float(torch.stack(sums).sum()))


def wait(device: torch.device) -> None:
    """Wait for a GPU.

    Arguments:
        device: anything; only a GPU has to be waited for.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def clocks() -> dict[str, str]:
    """What the GPU runs at; nothing is set.

    Returns:
        clocks, power and temperature in words; empty where nobody tells.
    """
    command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(zip(CLOCKS.split(","), told.splitlines()[0].split(", "), strict=True))


def main(cell: str, side: str, updates: str, small: str, answer: str) -> None:
    """Run, and write down what came out.

    Arguments:
        cell: one of `CELLS`.
        side: "setpoint" or "bare".
        updates: all of them, warm-up included.
        small: "small", or anything else.
        answer: the file for it.
    """
    began = time.perf_counter()
    job = job_of(cell, int(updates), small == "small")
    with settings_of(job):
        parts = build_components(job)
        device, built = parts.device, time.perf_counter() - began
        before = clocks()
        steps = Steps(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        (run_setpoint if side == "setpoint" else run_bare)(job, parts, steps)
    cuda = device.type == "cuda"
    assert isinstance(job.model, Transformer)
    sizes = {"vocab_size": 257, "sequence_length": job.batch.sequence_length}
    name = torch.cuda.get_device_name(device) if cuda else "cpu"
    peak = peak_of(name)
    row = {
        "cell": cell,
        "side": side,
        "seconds": steps.seconds,
        "losses": steps.losses,
        "tokens": job.batch.global_size * job.batch.sequence_length,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
        "flops": {formula: training_flops(job.model, formula, **sizes) for formula in FORMULAS},
        "peak_flops": None if peak is None else peak.flops,
        "device": name,
        "torch": torch.__version__,
        "build_seconds": built,
        "clocks_before": before,
        "clocks_after": clocks(),
    }
    Path(answer).write_text(json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
