"""The number of ranks of a command, and starting them on this node."""

from __future__ import annotations

import os
import sys
from typing import Any

from setpoint.cli.main import Loading
from setpoint.cli.options import Arguments, Option
from setpoint.config import PROGRAM, Composition, Editor, Origin, SetpointError, chain_of
from setpoint.config.values.origin import COMMAND_LINE, ENVIRONMENT, Recorded
from setpoint.config.words.plain_data import PlainScalar
from setpoint.parallel.rank import launched, own_rank, require_launch

NPROC = Option("--nproc N", "Start this many ranks on this node.")
SEVERAL = """
--nproc N or torchrun starts several ranks, which share the sequences and prompts;
[parallel] sets how the model is divided, by default not at all."""
"""Paragraph of the manuals of inference."""


def adopt_launcher(composition: Composition[Any]) -> None:
    """Take the number of ranks from the launcher, unless a layer of this command sets it.

    A value from a record applied only to its launcher.
    """
    size = os.environ.get("WORLD_SIZE")
    parallel = composition.draft.parallel
    chain = chain_of(parallel, "world_size")
    if chain and not isinstance(chain[-1][0], Recorded):
        return
    if size is None:
        if chain:
            parallel.set_field("world_size", 1, Origin(PROGRAM, "no launcher"))
        return
    editor = Editor(composition.draft)
    origin = Origin(ENVIRONMENT, "WORLD_SIZE")
    editor.set(("parallel", "world_size"), PlainScalar(size), origin)
    composition.problems.extend(editor.problems)


def require_ranks(arguments: Arguments) -> None:
    """Refuse launcher variables and --nproc that contradict each other."""
    require_launch()
    ranks = arguments.integer("--nproc")
    if ranks is not None:
        refuse_nproc(arguments, ranks)


def count_ranks(arguments: Arguments, composition: Composition[Any]) -> None:
    """Take the number of ranks of an inference job from --nproc or the launcher."""
    ranks = arguments.integer("--nproc")
    if ranks is None:
        adopt_launcher(composition)
        return
    origin = Origin(COMMAND_LINE, "--nproc")
    composition.draft.parallel.set_field("world_size", ranks, origin)


def refuse_nproc(arguments: Arguments, ranks: int) -> None:
    """Refuse --nproc if it cannot start ranks."""
    if launched() > 1:
        raise SetpointError(
            f"--nproc {ranks} starts ranks, but a launcher started this process as one of "
            f"{launched()}; remove one of the two"
        )
    if arguments.has("--config-from-stdin"):
        raise SetpointError(
            "--nproc and --config-from-stdin cannot be combined: standard input can be read only "
            "once; save the configuration and pass it with --file"
        )


def is_launcher(arguments: Arguments) -> bool:
    """True if this process starts ranks that run the command."""
    return (arguments.integer("--nproc") or 1) > 1


def speaks(arguments: Arguments) -> bool:
    """True if this process prints results: on the main rank, or as the only process."""
    return own_rank() == 0 and not is_launcher(arguments)


def start_ranks(arguments: Arguments) -> int | None:
    """Start the ranks of --nproc, which run the same command; None if this process runs it."""
    if not is_launcher(arguments):
        return None
    ranks = arguments.integer("--nproc")
    assert ranks is not None
    options = {option.name: option for option in arguments.command.options}
    words = [arguments.command.name, *arguments.positional, *arguments.overrides]
    for name, values in arguments.options.items():
        if name != "--nproc":
            words += [f"{name}={value}" for value in values] if options[name].metavar else [name]
    with Loading():
        from setpoint.parallel.launcher import launch
    return launch(words, ranks, note=note)


def note(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)
