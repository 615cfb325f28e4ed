"""The folder with the record that a run directory, a checkpoint or a git revision stands for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.places import find_checkpoint, verify_record
from setpoint.cli.options import Arguments
from setpoint.config import SetpointError, is_record

from .kind import CHECKPOINT, REVISION


@contextmanager
def open_record(source: str, kind: str, arguments: Arguments) -> Iterator[str]:
    """The folder with the record of a source.

    Returns:
        the folder, which for a revision is gone when the context ends.

    Raises:
        SetpointError: if there is none, or it cannot be made.
    """
    program = arguments.command.program
    if kind == REVISION:
        if program.is_own:
            raise SetpointError(
                f"{source}: git revisions can be read of Setpoint's own jobs only; for "
                f"{program.name}, check the revision out beside this one and compare records"
            )
        from .revision import record_at_revision

        imports = arguments.options.get("--import", [])
        with record_at_revision(source, program.root, imports) as folder:
            yield folder
    elif kind == CHECKPOINT:
        directory, _ = checkpoint_and_run(source)
        verify_record(Path(directory))
        yield directory
    elif is_record(source):
        yield source
    else:
        raise SetpointError(_no_record(source))


def checkpoint_and_run(source: str) -> tuple[str, str]:
    """The directory of a checkpoint and that of its run.

    Arguments:
        source: a source whose kind is `CHECKPOINT`.

    Returns:
        both directories; that of the run may hold no record, where a checkpoint was taken away.

    Raises:
        SetpointError: if there is no such checkpoint.
    """
    directory = find_checkpoint(Path(source))
    if directory is None:
        raise SetpointError(f"there is no checkpoint {source}")
    # Not `resolve`: a path is shown as it was typed.
    return str(directory), os.path.normpath(os.path.join(directory, "..", ".."))


def _no_record(source: str) -> str:
    names = [directory.name for directory in list_checkpoints(Path(source)).values()]
    if names:
        return f"{source} holds checkpoints; name one of them: {', '.join(names)}, latest"
    if Path(source, "adapter_config.json").is_file():
        return (
            f"{source} holds an adapter alone, as PEFT reads it over the weights beneath it.\n"
            f"Valid: the run that it was exported from, or `setpoint export RUN` without --adapter"
        )
    return (
        f"{source} is not a run directory: it has no config.json. A SOURCE is a preset, a file, a "
        f"run directory, a checkpoint, module:function, or a git revision as in HEAD~1:tiny"
    )
