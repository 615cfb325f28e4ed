"""How prepared data is recognised, without reading it."""

from __future__ import annotations

from pathlib import Path

KIND = "setpoint prepared data"
MANIFEST = "manifest.json"


def is_prepared(folder: Path) -> bool:
    """Whether a folder holds prepared data, of any version, whole or damaged."""
    try:
        with (folder / MANIFEST).open("rb") as file:
            return KIND.encode() in file.read(200)
    except OSError:
        return False
