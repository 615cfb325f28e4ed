"""A point of a sweep as a folder that `setpoint train` takes: its record, not yet a run."""

from __future__ import annotations

import json
from pathlib import Path

from setpoint.config import CONFIG, HEADER, Config, SetpointError, record_files
from setpoint.files.atomic import write_json, write_text

MARK = "point.json"
"""The file that tells the record of a point from a run directory."""

LOG = "output.log"
"""What the point's process printed, over all its starts."""


def write_point(folder: Path, name: str, job: Config, run: str) -> list[str]:
    """Write the record of a point, with the origins of all values.

    Arguments:
        folder: of the point; made if it is not there.

    Raises:
        SetpointError: if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetpointError(f"{folder} cannot be made: {error.strerror}") from error
    files = record_files(job)
    # The mark comes first: without it the folder would pass for a run directory.
    write_json(folder / MARK, {"name": name, "run": run})
    for file in sorted(files, key=lambda file: file == CONFIG):
        write_text(folder / file, files[file])
    return list(json.loads(files[CONFIG])[HEADER]["modules"])


def is_point(folder: str | Path) -> bool:
    """Whether a folder is the record of a point, whose run lies elsewhere."""
    return (Path(folder) / MARK).is_file()
