"""From SOURCE and OVERRIDES to a configuration, the same way for every command."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from setpoint.cli.command import Arguments
from setpoint.cli.misspelt import refuse_misspelt_options
from setpoint.cli.sources.kind import OTHER, RECORDED, RUN, kind_of
from setpoint.config import Config, SetpointError
from setpoint.config.base import chain_of
from setpoint.config.compose import Composition, compose
from setpoint.config.origin import COMMAND_LINE, Origin, Recorded

if TYPE_CHECKING:
    from setpoint.config.files.document import Document


def open_source(
    source: str | Document | None, arguments: Arguments, *, overrides: bool = True
) -> Composition[Any]:
    """Merge all layers for a source.

    Arguments:
        source: as typed, or a file that is read already; None stands for the defaults alone.
        arguments: the options and overrides of the call.
        overrides: whether modifiers, files, environment and overrides apply to this source.

    Returns:
        the merged draft of the root class of the program, with the problems found so far.

    Raises:
        SetpointError: if the source or a layer cannot be read, or the number of ranks is given
            twice.
    """
    prepare(arguments)
    root = arguments.command.program.root
    if overrides:
        refuse_misspelt_options(arguments, root.__setpoint__.fields)
    files: list[str | Document] = [*arguments.options.get("--file", [])] if overrides else []
    title = source
    if source is not None and not isinstance(source, str):
        source, title, files = None, source.name, [source, *files]
    start: str | Config | None = source
    notes: list[str] = []
    further = overrides and arguments.has("--config-from-stdin")
    if source == "-" or (further and "-" not in arguments.positional):
        from setpoint.cli.standard_input import read_standard_input

        document = read_standard_input(arguments)
        start, files = (None, [document, *files]) if source == "-" else (start, [*files, document])
    kind = OTHER if source is None or source == "-" else kind_of(source)
    if source is not None and kind in RECORDED:
        # Records are read by few calls, and what reads them is not free to import.
        from setpoint.cli.sources.record import open_record
        from setpoint.config.record import read_record

        with open_record(source, kind, arguments) as (folder, told):
            start, header = read_record(root, folder)
        notes.extend([*told, *header["notes"]])
    size = arguments.integer("--world-size")
    composition: Composition[Any] = compose(
        root,
        start,
        modifiers=arguments.options.get("--with", []) if overrides else [],
        files=files,
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
    composition.notes[:0] = notes
    if composition.notes:
        from setpoint.cli.notes import print_notes

        print_notes(composition.notes)
    composition.label = "standard input" if source == "-" else str(title or "the defaults")
    return composition


def run_directory_given(source: str | None) -> str | None:
    """The run directory that a source is, and that training it goes on in.

    Arguments:
        source: as typed.

    Returns:
        the directory; None for other sources, and for a point of a sweep, which is trained anew.
    """
    if source is None or kind_of(source) != RUN:
        return None
    from setpoint.sweep.point_record import is_point

    return None if is_point(source) else source


def prepare(arguments: Arguments) -> None:
    """Make known what a source may name: presets and modifiers, and the modules of `--import`.

    Arguments:
        arguments: of the call.

    Raises:
        SetpointError: if a module cannot be imported.
    """
    if not arguments.command.program.is_own:
        import setpoint.presets  # noqa: F401 - registers the presets and modifiers by name

    for name in arguments.options.get("--import", []):
        from setpoint.config.user_code import import_user_module

        import_user_module(name, f"--import {name}")
