"""Batches of steps that were not taken, kept for replay."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from setpoint.checkpoint.folder import directory_name, step_of
from setpoint.config import SetpointError
from setpoint.files.atomic import read_json, replacing, write_file
from setpoint.files.tensor_file import encode_tensors, read_tensors
from setpoint.shapes.batch import TENSORS, Batch, Lengths
from setpoint.track.jsonl import plain_numbers, restored_numbers
from setpoint.track.run_directory import BAD_BATCHES
from setpoint.train.loop import Callback

if TYPE_CHECKING:
    from setpoint.shapes.batch import Count, StepBatch
    from setpoint.train.loop import Loop
    from setpoint.train.session import Run
    from setpoint.train.verdict import StepResult

FACTS = "step.json"
KEPT = (*TENSORS, "source", "sources")
NUMBERS = ("tokens", "target_tokens", "target_bytes")


class BadBatches(Callback):
    """Keeps the batches of the latest bad steps, `resilience.bad_batches`.

    Each step has a folder with `batch-0.ID.safetensors` for each rank that reads data, and
    `step.json` with the `ID`, which distinguishes it from files of earlier attempts.
    """

    def opened(self, run: Run, stack: ExitStack) -> None:
        """Note where batches are kept."""
        self.run, self.world, self.root = run, run.world, run.directory / BAD_BATCHES
        self.keep = run.job.resilience.bad_batches

    def start(self, loop: Loop) -> None:
        """Note from which step and data a replay of the session begins."""
        self.rewind_point = {
            "step": loop.position.step,
            "data": loop.components.data_position(),
        }

    def rewound(self, loop: Loop) -> None:
        """Note the same after a rollback."""
        self.start(loop)

    def bad_step(self, loop: Loop, batch: StepBatch, total: Count, result: StepResult) -> None:
        """Keep a step's batches; a disk error is only reported."""
        step, note = result.step, self.run.progress.note
        if loop.components.replica_groups is not None:
            note(f"the batch of step {step} is not kept: this replica group has only part of it")
            return
        data = loop.components.data_position()
        attempt = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]
        folder = self.root / directory_name(step)
        facts = {
            "step": step,
            "attempt": attempt,
            "cause": result.cause,
            "loss": result.loss,
            "cross_entropy": result.cross_entropy,
            "grad_norm": result.grad_norm,
            "lr": result.lr,
            "position": asdict(result.began),
            "total": list(total[:3]),
            "data_ranks": self.world.data_size,
            "rewound": self.rewind_point,
        }
        try:
            if self.world.is_main:
                self._make_room(folder, attempt)
            folder.mkdir(parents=True, exist_ok=True)
            if self.world.gives_counts:
                name = f"batch-{self.world.data_rank}.{attempt}.safetensors"
                _replace(folder / name, encode_tensors(self._tensors(batch)))
            if self.world.is_main:
                text = json.dumps(plain_numbers(facts), indent=2, allow_nan=False) + "\n"
                _replace(folder / FACTS, [text.encode()])
        except OSError as error:
            reason = f"the batch of step {step} cannot be kept in {folder}: {error.strerror}"
            note(reason)
            self.run.events.write("fault", step=step, error=reason)
            return
        note(
            f"the batch of step {step} is kept: `setpoint replay {self.run.directory} {step}` runs "
            f"the step again"
        )

    def _tensors(self, step: StepBatch) -> dict[str, Tensor]:
        tensors = {"noise_rank": torch.tensor(self.world.noise_rank)}
        for number, batch in enumerate(step.batches):
            for name in KEPT:
                tensor = getattr(batch, name)
                if tensor is not None:
                    tensors[f"{number}.{name}"] = tensor
            if batch.lengths is not None:
                tensors[f"{number}.lengths"] = torch.from_numpy(batch.lengths.starts)
            numbers = [getattr(batch, name) for name in NUMBERS]
            tensors[f"{number}.numbers"] = torch.tensor(numbers)
        return tensors

    def _make_room(self, folder: Path, attempt: str) -> None:
        """Remove the oldest steps, and files from earlier attempts at this step."""
        if folder.is_dir():
            for file in folder.iterdir():
                if f".{attempt}." not in file.name:
                    file.unlink()
        if not self.root.is_dir():
            return
        folders = [entry for entry in self.root.iterdir() if step_of(entry.name) is not None]
        older = sorted(
            (entry for entry in folders if entry != folder), key=lambda entry: entry.stat().st_mtime
        )
        for old in older[: max(0, len(older) + 1 - self.keep)]:
            shutil.rmtree(old)


def _replace(path: Path, chunks: Any) -> None:
    with replacing(path) as staged:
        write_file(staged, chunks)


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A kept step.

    Arguments:
        facts: content of `step.json`.
        shares: for each rank that read data, its RNG rank and its micro-batches.
    """

    facts: Mapping[str, Any]
    shares: list[tuple[int, list[Batch]]]


def read_bad_batch(run: Path, step: int) -> SavedStep | None:
    """Read a kept step.

    Returns:
        None if it was not kept.

    Raises:
        SetpointError: a file is missing or damaged.
    """
    folder = run / BAD_BATCHES / directory_name(step)
    if not (folder / FACTS).is_file():
        return None
    try:
        facts = restored_numbers(read_json(folder / FACTS))
        ranks, attempt = int(facts["data_ranks"]), str(facts["attempt"])
        names = [f"batch-{rank}.{attempt}.safetensors" for rank in range(ranks)]
        return SavedStep(facts, [_read(folder / Path(name).name) for name in names])
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,
        SetpointError,
    ) as error:
        raise SetpointError(
            f"{folder} is damaged: {error}\nValid: --from-data, which reads the batch from the data"
        ) from error


def _read(path: Path) -> tuple[int, list[Batch]]:
    tensors = read_tensors(path)
    batches: list[Batch] = []
    while f"{len(batches)}.numbers" in tensors:
        number = len(batches)
        tokens, targets, size = map(int, tensors[f"{number}.numbers"].tolist())
        fields = {name: tensors.get(f"{number}.{name}") for name in KEPT}
        inputs = fields["inputs"]
        if inputs is None or inputs.dim() != 2 or inputs.dtype != torch.int64:
            raise ValueError(f"{path.name} has no tokens")
        starts = tensors.get(f"{number}.lengths")
        fields["lengths"] = None if starts is None else Lengths.of(starts.numpy())  # pyright: ignore[reportArgumentType]
        batches.append(Batch(tokens=tokens, target_tokens=targets, target_bytes=size, **fields))  # pyright: ignore[reportArgumentType]
    return int(tensors["noise_rank"]), batches
