"""Listing and verification of checkpoints at a URL. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from setpoint.checkpoint.folder import POINTERS, PointerName, directory_name
from setpoint.checkpoint.manifest import MANIFEST, Manifest
from setpoint.checkpoint.places import (
    CHECKPOINTS,
    CheckpointEntry,
    FileComparison,
    reason_of,
    split_url,
)
from setpoint.config import SetpointError
from setpoint.ops.remote_run import SET_ASIDE, RemoteCheckpoint, RemoteRun


class RemotePlace:
    """Checkpoints at a URL, as `CheckpointPlace` are those of a folder.

    Arguments:
        url: of a run, of its checkpoints or of one of them, or of `latest` or `best` there.

    Raises:
        RemoteError: if the service does not answer.
        SetpointError: if a given pointer is invalid.
    """

    def __init__(self, url: str) -> None:
        run_url, selector = split_url(url)
        self.run = RemoteRun(run_url)
        self.root = f"{run_url}/{CHECKPOINTS}"
        self.only = self.run.pointer(selector) if isinstance(selector, str) else selector
        if selector is not None and self.only is None:
            raise SetpointError(f"there is no checkpoint {selector} at {self.root}")

    def survey(self) -> list[CheckpointEntry]:
        """List the checkpoints, by step.

        Raises:
            RemoteError: if the service does not answer.
        """
        steps = self.run.steps() if self.only is None else [self.only]
        return [self._look(step) for step in steps]

    def pointers(self) -> dict[PointerName, int | str | None]:
        """The step of each pointer, or the reason why it is broken."""
        targets: dict[PointerName, int | str | None] = {}
        for name in POINTERS:
            step = self.run.pointer(name)
            lost = step is not None and MANIFEST not in self.run.sizes(step)
            targets[name] = (
                f"{self.root}/{name} names step {step}, which is incomplete" if lost else step
            )
        return targets

    def compare(self, entry: CheckpointEntry) -> Iterator[FileComparison]:
        """Compare every byte of a checkpoint with its checksums, file by file.

        Raises:
            SetpointError: if its manifest cannot be read.
        """
        checkpoint = self.run.find(entry.step)
        if checkpoint is None:
            raise SetpointError(f"{MANIFEST} is missing")
        for name, written in sorted(checkpoint.manifest.files.items()):
            part = RemoteCheckpoint(
                checkpoint.step,
                Manifest(checkpoint.step, checkpoint.manifest.metric, {name: written}),
                checkpoint.text,
            )
            try:
                self.run.verify(part)
                problem = ""
            except SetpointError as error:
                problem = reason_of(error)
            yield FileComparison(name, written.size, problem)

    def is_gone(self, entry: CheckpointEntry) -> bool:
        """True if a checkpoint has been removed meanwhile."""
        return not self.run.sizes(entry.step)

    def _look(self, step: int) -> CheckpointEntry:
        sizes = self.run.sizes(step)
        kind = "checkpoint" if MANIFEST in sizes else "unfinished"
        manifest, damage = None, ""
        if kind == "checkpoint":
            try:
                checkpoint = self.run.find(step)
                manifest = None if checkpoint is None else checkpoint.manifest
            except SetpointError as error:
                damage = reason_of(error)
            if manifest is not None:
                damage = manifest.wrong_size(sizes)
        written = self.run.written(step) if kind == "checkpoint" else None
        return CheckpointEntry(
            Path(directory_name(step)),
            "set aside" if SET_ASIDE in sizes and kind != "checkpoint" else kind,
            step,
            written,
            sum(sizes.values()),
            manifest,
            damage,
        )
