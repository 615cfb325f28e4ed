"""What the commands `setpoint checkpoint ...` share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

from setpoint.checkpoint.folder import PointerName
from setpoint.checkpoint.places import (
    CheckpointEntry,
    FileComparison,
    compare_files,
    find_place,
    pointers_at,
    survey,
)
from setpoint.config import SetpointError
from setpoint.hub.urls import is_url, protocol_problem
from setpoint.ops.remote_survey import RemotePlace

RUN_HELP = """
RUN is a run directory, its folder checkpoints, or one checkpoint, as in
runs/tiny-3fa94c21/checkpoints/best. The training data is not needed."""

RUN_OR_URL_HELP = f"""{RUN_HELP}
A URL of what checkpoint.remote uploads does as well: s3://bucket/runs/tiny-3fa94c21."""


class Folder(Protocol):
    """Checkpoints that lie together, on a disk or at a URL."""

    @property
    def root(self) -> str:
        """Where."""
        ...

    @property
    def only(self) -> object:
        """The one that is meant; None for all."""
        ...

    def survey(self) -> list[CheckpointEntry]:
        """List them."""
        ...

    def pointers(self) -> dict[PointerName, int | str | None]:
        """What `latest` and `best` name, or what is wrong with them."""
        ...

    def compare(self, found: CheckpointEntry) -> Iterator[FileComparison]:
        """Compare the files of one with their checksums."""
        ...

    def is_gone(self, found: CheckpointEntry) -> bool:
        """Whether one has been removed meanwhile."""
        ...


class _OnDisk:
    def __init__(self, path: str) -> None:
        self._place = find_place(path)
        self.root, self.only = str(self._place.root), self._place.only

    def survey(self) -> list[CheckpointEntry]:
        return survey(self._place)

    def pointers(self) -> dict[PointerName, int | str | None]:
        return pointers_at(self._place.root)

    def compare(self, found: CheckpointEntry) -> Iterator[FileComparison]:
        return compare_files(found.path)

    def is_gone(self, found: CheckpointEntry) -> bool:
        return not os.path.lexists(found.path)


def folder_of(text: str) -> Folder:
    """The checkpoints that an argument means.

    Raises:
        SetpointError: if there are none, or a service does not answer.
    """
    if not is_url(text):
        return _OnDisk(text)
    problem = protocol_problem(text, "remote")
    if problem:
        raise SetpointError(problem)
    place = RemotePlace(text)
    if not place.run.is_there():
        raise SetpointError(
            f"{text} holds no checkpoints.\nValid: the URL of a run, of a folder of runs, or of a "
            f"checkpoint"
        )
    return place


def state_of(found: CheckpointEntry, names: list[str]) -> str:
    """What is to be said of a checkpoint beside its numbers.

    Arguments:
        names: of the pointers to it.
    """
    if found.kind == "unfinished":
        return "unfinished: being written or removed, or left by a process that died"
    words = [*names, *([found.kind] if found.kind == "set aside" else [])]
    words += ["without frozen parameters"] if found.leaves_out else []
    return ", ".join([*words, *([f"damaged: {found.damage}"] if found.damage else [])])
