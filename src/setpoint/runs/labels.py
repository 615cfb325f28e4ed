"""What people say of a run: tags, a note, and whether it is put away."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from setpoint.config import SetpointError
from setpoint.files.atomic import read_json, write_json

FILE = "labels.json"
"""In the run directory."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Of one run.

    Arguments:
        archived: whether lists leave it out unless they are asked for it.
    """

    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False


def read_labels(run: Path) -> Labels:
    """What is said of a run; nothing where nobody has said anything.

    Raises:
        SetpointError: if the file is not what `write_labels` wrote.
    """
    path = run / FILE
    try:
        found = read_json(path)
        if not isinstance(found, dict) or not isinstance(found["tags"], list):
            raise ValueError("it is not what `setpoint runs tag` writes")
        return Labels(tuple(map(str, found["tags"])), str(found["note"]), bool(found["archived"]))
    except FileNotFoundError:
        return Labels()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetpointError(
            f"{path} cannot be read: {error}; remove it to begin with no tags"
        ) from error


def write_labels(run: Path, labels: Labels) -> None:
    """Write it, in one step.

    Raises:
        RunError: if it cannot be written; what was said before is unchanged.
    """
    write_json(run / FILE, asdict(labels))
