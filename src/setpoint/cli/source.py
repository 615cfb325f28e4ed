"""From SOURCE and OVERRIDES to a configuration, the same way for every command."""

from __future__ import annotations

import os

from setpoint.cli.command import Arguments
from setpoint.cli.misspelt import refuse_misspelt_options
from setpoint.config import SetpointError
from setpoint.config.base import chain_of
from setpoint.config.compose import Composition, compose
from setpoint.config.origin import COMMAND_LINE, Origin, Recorded
from setpoint.config.registry import presets
from setpoint.train.config import Job


def open_source(
    source: str | None, arguments: Arguments, *, overrides: bool = True
) -> Composition[Job]:
    """Merge all layers for a source.

    Arguments:
        source: as typed; None stands for the defaults alone.
        arguments: the options and overrides of the call.
        overrides: whether modifiers, files, environment and overrides apply to this source.

    Returns:
        the merged draft, with the problems found so far.

    Raises:
        SetpointError: if the source or a layer cannot be read, or the number of ranks is given
            twice.
    """
    import setpoint.presets  # noqa: F401 - registers the presets and modifiers by name

    for name in arguments.options.get("--import", []):
        from setpoint.config.user_code import import_user_module

        import_user_module(name, f"--import {name}")
    if overrides:
        refuse_misspelt_options(arguments, Job.__setpoint__.fields)
    start: str | Job | None = source
    if source is not None and is_folder(source):
        # Records are read by few calls, and what reads them is not free to import.
        from setpoint.config.record import is_record, read_record

        if not is_record(source):
            raise SetpointError(
                f"{source} is not a run directory: it has no config.json. A SOURCE is a preset, "
                f"a file, a run directory, or module:function"
            )
        start, _ = read_record(Job, source)
    size = arguments.integer("--world-size")
    composition = compose(
        Job,
        start,
        modifiers=arguments.options.get("--with", []) if overrides else [],
        files=arguments.options.get("--file", []) if overrides else [],
        environ=os.environ if overrides else None,
        flags=arguments.overrides if overrides else [],
    )
    if size is not None and overrides:
        parallel = composition.draft.parallel
        origins = [origin for origin, _ in chain_of(parallel, "world_size")]
        # The command line of the run that a record is of does not count.
        if any(o.layer == COMMAND_LINE and not isinstance(o, Recorded) for o in origins):
            raise SetpointError(
                "--world-size and parallel.world_size are the same number and both are given; "
                "leave one of them out"
            )
        parallel.set_field("world_size", size, Origin(COMMAND_LINE, "--world-size"))
    composition.label = source or "the defaults"
    return composition


def is_folder(source: str) -> bool:
    """Whether a source means a folder; a preset's name is the preset, whatever lies about.

    Arguments:
        source: as typed; `./tiny` is the folder of that name.

    Returns:
        True for what must be a run directory.
    """
    return os.path.isdir(source) and source.replace("_", "-") not in presets
