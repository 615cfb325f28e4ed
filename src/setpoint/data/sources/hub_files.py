"""What is known of a data set of Hugging Face without reading it."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator

from setpoint.config import Problem
from setpoint.data.sources.config import HubDataset
from setpoint.data.sources.files import EXTRA

SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves in a folder
_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def folder_of(config: HubDataset) -> str | None:
    """The local folder; None for a data set of the hub."""
    path = os.path.expanduser(config.path)
    return path if os.path.isdir(path) else None


def is_saved(folder: str) -> bool:
    """Whether `save_to_disk` wrote a folder."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in SAVED)


def path_problems(config: HubDataset) -> Iterator[Problem]:
    """Find a path that can be no data set, and what a local one has no use for; no hub is asked."""
    folder = folder_of(config)
    if folder is None and _ID.fullmatch(config.path) is None:
        yield Problem(
            "path", "is no folder here, and no id that the hub could have", valid=("owner/name",)
        )
    useless = {"revision": config.revision, "token": config.token} if folder else {}
    if folder and is_saved(folder):
        useless |= {
            "subset": config.subset,
            "data_files": config.data_files,
            "streaming": config.streaming,
        }
    for name, value in useless.items():
        if value:
            what = "that save_to_disk wrote" if is_saved(folder or "") else "of data files"
            yield Problem(name, f"has no effect on a local folder {what}", hint="Remove it.")
    if importlib.util.find_spec("datasets") is None:
        yield Problem("type", "needs the package 'datasets'", hint=f"pip install {EXTRA}")
