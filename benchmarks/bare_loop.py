"""The price of the trainer: tokens per second of `setpoint train` against a loop in plain PyTorch.

Both train the same model on the same batches in the same process, in turns of a few updates, so
that whatever else the machine does hits both. Setpoint's side is the loop of `setpoint train` with
its callbacks, logging every 10 steps; no checkpoint or evaluation falls into the measured steps.
The other side is `BareLoop` below. Leaves with status 1 if the losses of the two differ, or if
Setpoint reaches less than 0.98 of the bare loop's speed.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from setpoint.train import prepare_threads

prepare_threads()  # as `setpoint train` does, before torch is imported

import numpy  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import setpoint.presets  # noqa: E402, F401 - registers the preset
from setpoint.cli.output import table  # noqa: E402
from setpoint.config.composition import compose  # noqa: E402
from setpoint.data.order import shuffled  # noqa: E402
from setpoint.model.config import TransformerConfig  # noqa: E402
from setpoint.optim.config import AdamWConfig  # noqa: E402
from setpoint.optim.schedule.config import Cosine  # noqa: E402
from setpoint.train.build.components import Components, build_components  # noqa: E402
from setpoint.train.config import Job  # noqa: E402
from setpoint.train.loop import Callback, Loop  # noqa: E402
from setpoint.train.verdict import StepResult  # noqa: E402
from support.session import training_loop  # noqa: E402

TARGET = 0.98
TOLERANCE = 1e-6
FIXED = ("checkpoint.every=never", "evaluation=null", "tracking.every=10 steps")
# By name: how many times as many updates a block has, and what is changed.
ROWS: dict[str, tuple[int, tuple[str, ...]]] = {
    "tiny": (1, ()),
    # Next to no arithmetic: what is left is Python, on both sides.
    "dim 32, S 32": (10, ("model.dim=32", "batch.sequence_length=32")),
}
HEADINGS = (
    "model",
    "setpoint",
    "bare",
    "ratio",
    "in pairs (quartiles)",
    "by CPU time",
    "last loss",
    "differ by",
)


class BareLoop:
    """What a careful engineer writes for one model, one data set and one machine.

    Arguments:
        job: gives the numbers.
        tokens: (T,) the training text.
        model: initialized.
        order: the windows of S + 1 tokens in the order of the epoch.
        device: where the model lies.
    """

    def __init__(
        self,
        job: Job,
        tokens: torch.Tensor,
        model: nn.Module,
        order: list[int],
        device: torch.device,
    ) -> None:
        assert isinstance(job.optimizer, AdamWConfig) and isinstance(job.schedule, Cosine)
        self.model, self.tokens, self.order, self.device = model, tokens, order, device
        self.batch_size, self.length = job.batch.global_size, job.batch.sequence_length
        self.lr, self.clip = job.optimizer.lr, job.optimizer.clip_norm
        self.warmup = job.schedule.warmup.count
        self.horizon = job.schedule.horizon.in_unit("steps")
        self.floor = job.schedule.floor
        self.autocast = job.precision.compute == "bf16"
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {
                    "params": [p for p in self.parameters if p.ndim >= 2],
                    "weight_decay": job.optimizer.weight_decay,
                },
                {"params": [p for p in self.parameters if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=self.lr,
            betas=job.optimizer.betas,
            eps=job.optimizer.eps,
            fused=True,
        )
        self.losses: list[float] = []
        model.train()

    def learning_rate(self, step: int) -> float:
        """A linear warm-up, then half a cosine."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = min(1.0, (step - self.warmup) / (self.horizon - self.warmup))
        return self.lr * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done)))

    def step(self) -> None:
        """Take one update."""
        at, size, length = len(self.losses), self.batch_size, self.length
        starts = [window * (length + 1) for window in self.order[at * size : (at + 1) * size]]
        windows = torch.stack([self.tokens[i : i + length + 1] for i in starts]).to(self.device)
        inputs, targets = windows[:, :-1], windows[:, 1:]
        lr = self.learning_rate(at)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            logits = self.model(inputs)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.item())


@dataclass
class Times:
    """Seconds of each block.

    Arguments:
        wall: by the clock.
        cpu: of all threads of the process.
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


class Turns(Callback):
    """Lets the bare loop take its turn after each block of updates.

    Arguments:
        bare: the other side.
        steps: updates in a block.
    """

    def __init__(self, bare: BareLoop, steps: int) -> None:
        self.bare, self.steps = bare, steps
        self.ours, self.theirs = Times(), Times()
        self.losses: list[float] = []

    def start(self, loop: Loop) -> None:
        """See `Callback.start`."""
        self.begin()

    def needs_result(self, loop: Loop) -> bool:
        """See `Callback.needs_result`."""
        return (len(self.losses) + 1) % self.steps == 0

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """See `Callback.after_step`."""
        self.losses.append(result.loss)
        if len(self.losses) % self.steps:
            return
        self.end(self.ours)
        self.begin()
        for _ in range(self.steps):
            self.bare.step()
        self.end(self.theirs)
        self.begin()

    def begin(self) -> None:
        """Start both clocks."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def end(self, times: Times) -> None:
        """Stop both clocks."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.wall.append(time.perf_counter() - self._wall)
        times.cpu.append(time.process_time() - self._cpu)


def main() -> int:
    """Run the benchmark.

    Returns:
        0 if the losses agree and Setpoint is fast enough with `tiny`, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=12, help="measured blocks of each side")
    parser.add_argument("--steps", type=int, default=10, help="updates in a block of `tiny`")
    arguments = parser.parse_args()
    rows: list[list[str]] = []
    failed: list[str] = []
    for name, (scale, flags) in ROWS.items():
        steps = arguments.steps * scale
        turns, tokens = _measure(flags, max(8, arguments.blocks), steps)
        ratio, cells = _compare(turns, tokens * steps)
        gap = max(abs(a - b) for a, b in zip(turns.losses, turns.bare.losses, strict=True))
        rows.append([name, *cells, f"{turns.losses[-1]:.4f}", f"{gap:.1e}"])
        if gap > TOLERANCE:
            failed.append(f"FAILED {name}: the losses differ by {gap:.1e}, above {TOLERANCE}")
        if name == "tiny" and ratio < TARGET:
            failed.append(f"FAILED {name}: setpoint / bare = {ratio:.3f}, below {TARGET}")
    blocks, threads = max(8, arguments.blocks), torch.get_num_threads()
    print(f"{blocks} blocks of each side in turn, {threads} threads, tokens per second\n")
    print(table(rows, headings=HEADINGS))
    print("\n" + ("\n".join(failed) or f"ok: setpoint / bare is at least {TARGET} with tiny"))
    return 1 if failed else 0


def _compare(turns: Turns, tokens: int) -> tuple[float, list[str]]:
    """The ratio of the median speeds, and the cells of the table."""
    # The first block of each side warms up.
    mine, bare = turns.ours.wall[1:], turns.theirs.wall[1:]
    ratio = statistics.median(bare) / statistics.median(mine)
    pairs = [b / a for a, b in zip(mine, bare, strict=True)]
    low, middle, high = statistics.quantiles(pairs, n=4)
    cpu = statistics.median(turns.theirs.cpu[1:]) / statistics.median(turns.ours.cpu[1:])
    speeds = [f"{tokens / statistics.median(side):,.0f}" for side in (mine, bare)]
    return ratio, [*speeds, f"{ratio:.3f}", f"{middle:.3f} ({low:.3f}-{high:.3f})", f"{cpu:.3f}"]


def _measure(flags: tuple[str, ...], blocks: int, steps: int) -> tuple[Turns, int]:
    """Train both sides in turns; the turns, and the tokens of an update."""
    updates = (blocks + 1) * steps
    fixed = (*FIXED, f"duration={updates} steps")
    job = compose(Job, "tiny", flags=[f"--{flag}" for flag in (*fixed, *flags)]).resolve()
    components = build_components(job)
    bare = _bare_loop(job, components, updates)
    turns = Turns(bare, steps)
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        training_loop(job, components, Path(folder) / "run", nowhere, [turns]) as loop,
    ):
        loop.run()
    return turns, job.batch.global_size * job.batch.sequence_length


def _bare_loop(job: Job, components: Components, updates: int) -> BareLoop:
    """The bare loop with the same weights and the same order of the data."""
    assert isinstance(job.model, TransformerConfig) and job.batch.accumulation == 1
    model: nn.Module = job.model.build(vocab_size=components.tokenizer.vocab_size).to(
        components.device
    )
    model.load_state_dict(components.model.state_dict())
    count = len(components.train_data)
    epochs = range(math.ceil(updates * job.batch.global_size / count))
    whole = numpy.arange(count)
    order = [w for e in epochs for w in shuffled(f"windows/{job.seed}/{e}", count, whole).tolist()]
    tokens = torch.from_numpy(components.train_data.corpus.tokens.astype("int64"))
    return BareLoop(job, tokens, model, order, components.device)


if __name__ == "__main__":
    sys.exit(main())
