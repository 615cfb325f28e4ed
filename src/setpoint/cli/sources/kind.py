"""What a SOURCE is, by its form and by what lies in the working folder."""

from __future__ import annotations

import os
import sys

from setpoint.config import SUFFIXES, preset_named

RUN, CHECKPOINT, REVISION, OTHER = "run", "checkpoint", "revision", "other"
RECORDED = (RUN, CHECKPOINT, REVISION)
"""The kinds that are, or become, a folder with a record."""

MANIFEST = "manifest.json"
POINTERS = ("latest", "best")


def kind_of(source: str) -> str:
    """What a source is.

    A preset's name is the preset, whatever lies about; `./tiny` is the folder of that name. What
    exists as a file or folder is that. Of `A:B`, see `is_revision`.

    Returns:
        `RUN` for a folder, `CHECKPOINT`, `REVISION`, or `OTHER`: a preset, a file or a function.
    """
    if preset_named(source):
        return OTHER
    if os.path.isdir(source):
        is_checkpoint = os.path.isfile(os.path.join(source, MANIFEST))
        return CHECKPOINT if is_checkpoint else RUN
    folder, name = os.path.split(source)
    named = name in POINTERS or (name.startswith("step-") and not name.endswith(SUFFIXES))
    if named and os.path.isdir(folder):
        return CHECKPOINT
    if os.path.exists(source):
        return OTHER
    return REVISION if is_revision(source) else OTHER


def is_hugging_face_directory(source: str) -> bool:
    """Whether a directory holds a model in the format of Hugging Face, and no record of ours.

    Returns:
        True for a folder with a config.json that has nothing of a run or a checkpoint beside it.
    """
    path = os.path.join(source, "config.json")
    if not os.path.isfile(path) or {"origins.json", MANIFEST, "checkpoints"} & {
        *os.listdir(source)
    }:
        return False
    with open(path, "rb") as file:
        return b'"setpoint"' not in file.read(200)  # the header of a record that lost its rest


def split_revision(source: str) -> tuple[str, str] | None:
    """The two sides of `REV:WHAT`; git's own `HEAD^{/fix: this}` and `main@{10:30}` are heeded.

    Returns:
        the revision and what follows the colon; None if there is no colon between two texts.
    """
    depth = 0
    for at, sign in enumerate(source):
        depth += (sign == "{") - (sign == "}")
        if sign == ":" and not depth:
            return (source[:at], source[at + 1 :]) if 0 < at < len(source) - 1 else None
        if sign == "(" and not depth:  # the parameters of a preset
            return None
    return None


def is_revision(source: str) -> bool:
    """Whether `A:B`, of which no file has the name, is a git revision and something in it.

    It is one where it cannot be `module:function`: B is a path, A is no module's name, or there is
    no module A. Where a branch has the name of a module, `heads/A:B` is the branch.
    """
    parts = split_revision(source)
    if parts is None:
        return False
    left, right = parts
    what = right.partition("(")[0]
    if what.endswith(SUFFIXES) or "/" in what or os.sep in what or ":" in what:
        return True
    return not all(word.isidentifier() for word in left.split(".")) or not _is_module(left)


def _is_module(name: str) -> bool:
    """Whether there is a module of this name, without importing anything."""
    from importlib.machinery import PathFinder

    top = name.partition(".")[0]
    if top in sys.modules or top in sys.builtin_module_names:
        return True
    try:
        spec = PathFinder.find_spec(top, [os.getcwd(), *sys.path])
    except OSError:  # the working folder is gone
        return True
    # Any folder would do as a "namespace package", and holds no function itself.
    return spec is not None and (spec.origin is not None or "." in name)
