"""Labels of a run: tags, a note, and whether it is archived."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from setpoint.config import SetpointError
from setpoint.files.atomic import read_json, write_json

FILE = "labels.json"
"""In the run directory."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of one run.

    Arguments:
        archived: True if lists leave it out by default.
    """

    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False


def read_labels(run: Path) -> Labels:
    """Read the labels of a run; empty where there are none.

    Raises:
        SetpointError: if the file is not what `write_labels` wrote.
    """
    path = run / FILE
    try:
        labels = read_json(path)
        if not isinstance(labels, dict) or not isinstance(labels["tags"], list):
            raise ValueError("it is not what `setpoint runs tag` writes")
        return Labels(
            tuple(map(str, labels["tags"])), str(labels["note"]), bool(labels["archived"])
        )
    except FileNotFoundError:
        return Labels()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetpointError(
            f"{path} cannot be read: {error}; remove it to begin with no tags"
        ) from error


def write_labels(run: Path, labels: Labels) -> None:
    """Write the labels atomically.

    Raises:
        RunError: if they cannot be written; those before are unchanged.
    """
    write_json(run / FILE, asdict(labels))
