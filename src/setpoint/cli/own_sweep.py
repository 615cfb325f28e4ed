"""`python train.py sweep`: many points of a script with a config class of its own.

Each point is a process of the script, whose SOURCE is the point's record. What a point comes to is
the script's own business: the sweep knows its exit status and what it printed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from setpoint.cli.options import (
    COMMON,
    JSON,
    SOURCE_HELP,
    Arguments,
    Command,
    Option,
    refuse_misspelt_options,
)
from setpoint.cli.source import prepare as import_what_is_named
from setpoint.cli.sweep import COMMAND as SWEEP
from setpoint.cli.sweep import carry_out
from setpoint.cli.sweep_points import Outside, Prepared
from setpoint.cli.sweep_source import Opener, space_of_call
from setpoint.config import NEEDS, Caution, Config, Problem, SetpointError, verify
from setpoint.report.status import FINISHED
from setpoint.sweep.record import POINTS, SWEEP_FILE, Task, read_record_of
from setpoint.sweep_space.flags import read_command_line
from setpoint.sweep_space.points import LIMIT, Composer, ResolvedPoint, resolve_points

FOLDER = "--folder"
TAKEN = ("--jobs", "--dry-run", "--limit", "--random")
COMMAND = Command(
    "sweep",
    "SOURCE [OVERRIDES]",
    "Run the script with every combination of the values that are given: `--lr 1e-4,3e-4\n"
    "--seed 1,2` is a grid of four points. A comma separates points, also in SOURCE and in\n"
    "--with; a list as one point is in brackets. A file with a table [sweep] describes points of\n"
    "every kind. All points are resolved and checked before any is started; each is a process of\n"
    "its own. The folder of the sweep holds the record and the output of each point, and\n"
    "sweep.json says what came of it; the same command again skips what ended with status 0. With\n"
    "--random N, values such as 'log_uniform(1e-5, 1e-2)', 'integer(2, 8)' and 'choice(a, b)' are\n"
    "drawn.\n" + SOURCE_HELP,
    [
        *(option for option in SWEEP.options if option.name in TAKEN),
        Option("--draw-seed", "Start of --random; 0 if not given.", "N"),
        Option(FOLDER, "Of the sweep; sweeps/SCRIPT-SOURCE if not given.", "DIRECTORY"),
        *COMMON,
        JSON,
    ],
    (),
)


class ScriptTask(Task):
    """A point whose run is the script's own business.

    Arguments:
        finished: whether the script ended with status 0 for it before.
    """

    def __init__(self, point: ResolvedPoint[Config], folder: Path, finished: bool) -> None:
        super().__init__(point, folder, folder / POINTS / point.name)
        if finished:
            self.status = FINISHED

    def read_state(self) -> None:
        """Nothing can be read; the record of the sweep says what is finished."""

    def read_metrics(self) -> None:
        """Nothing is known of what a script measures."""

    def plan(self) -> str:
        """What would happen with it, in a few words."""
        return "skip: finished" if self.status == FINISHED else "start"


@COMMAND
def run(arguments: Arguments) -> int:
    """Prepare, launch and report.

    Returns:
        the exit status: 0 done, 1 if a point failed, 75 or 130 if it was stopped.
    """
    root = arguments.command.program.root
    refuse_misspelt_options(arguments, root.__setpoint__.fields)
    source = arguments.source or ""
    import_what_is_named(arguments)
    line = read_command_line(root, source, arguments.options.get("--with", []), arguments.overrides)
    opener = Opener(arguments, line)
    outside: Outside[Config] = Outside(_look)
    composer = Composer(opener, line, verify=outside)
    if line.source is not None and opener.file is None:
        composer.base()  # reads the file, and with it the table of the sweep
    search, _, space = space_of_call(arguments, line, opener.document, opener.file is not None)
    if search is not None:
        raise SetpointError(
            f"{source}: a search compares what points come to, which a script of your own keeps "
            f"to itself; give a grid, a list or random points"
        )

    found = resolve_points(space, composer, arguments.integer("--limit") or LIMIT)
    folder = Path(arguments.value(FOLDER) or _default_folder(source))
    finished = _finished(folder)
    tasks: list[Task] = [
        ScriptTask(point, folder, point.fingerprint in finished) for point in found.kept
    ]
    imports = arguments.options.get("--import", [])
    remarks = outside.remarks(found.kept)
    label = source or "the defaults"
    prepared = Prepared(
        label, folder, tasks, found.duplicates, None, {}, None, imports, remarks, _script_command
    )
    return carry_out(prepared, arguments)


def _script_command(task: Task, modules: Sequence[str]) -> list[str]:
    """The command of a point: the script as it was started, with the record as SOURCE."""
    imports = [word for name in modules if name != "__main__" for word in ("--import", name)]
    return [sys.executable, *_script(), str(task.folder), *imports]


def _script() -> list[str]:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return ["-m", spec.name.removesuffix(".__main__")] if spec is not None else [sys.argv[0]]


def _default_folder(source: str) -> Path:
    script = _script()[-1].rpartition("/")[2].removesuffix(".py")
    stem = re.sub(r"\.(toml|yaml|yml|json)$", "", source.rstrip("/").rpartition("/")[2])
    words = [re.sub(r"[^A-Za-z0-9_.-]+", "-", word).strip("-.")[:40] for word in (script, stem)]
    return Path("sweeps", "-".join(word for word in words if word))


def _finished(folder: Path) -> set[str]:
    """The fingerprints of the points that ended with status 0 before."""
    points = read_record_of(folder) if (folder / SWEEP_FILE).exists() else []
    return {point["fingerprint"] for point in points if point["status"] == FINISHED}


def _look(config: Config) -> tuple[list[Problem], list[Caution]]:
    # What needs torch is found by the point's own process, which loads it anyway.
    found = verify(config, [need for need in NEEDS if need != "torch"])
    return list(found.problems), list(found.cautions)
