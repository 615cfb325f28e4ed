"""The values of a source, to be compared with those of others."""

from __future__ import annotations

import os

from setpoint.cli.options import Arguments
from setpoint.cli.output import print_notes
from setpoint.cli.source import open_source, prepare, root_of
from setpoint.cli.sources.kind import RECORDED, kind_of
from setpoint.config import Table, leaf_table, prefix_of, recorded_table

LAYERS = ("--with", "--file", "--world-size", "--config-from-stdin")


def open_table(source: str, arguments: Arguments, *, overrides: bool) -> Table:
    """The values of a source: of a record as they were written, of others as they resolve today.

    Arguments:
        overrides: whether they, and the environment, apply to this source; a record that they
            change is resolved anew.

    Raises:
        SetpointError: if the source cannot be read or resolved.
    """
    prepare(arguments)
    kind = kind_of(source)
    if kind not in RECORDED or (overrides and _is_changed(arguments)):
        return leaf_table(open_source(source, arguments, overrides=overrides).resolve())
    # Records are read by few calls, and what reads them is not free to import.
    from setpoint.cli.sources.record import open_record

    with open_record(source, kind, arguments) as folder:
        table, notes = recorded_table(root_of(source, arguments), folder)
    print_notes(notes)
    return table


def _is_changed(arguments: Arguments) -> bool:
    given = any(arguments.has(name) for name in LAYERS)
    prefix = prefix_of(arguments.command.program.root)
    return given or bool(arguments.overrides) or any(key.startswith(prefix) for key in os.environ)
