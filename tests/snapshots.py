"""Texts that people read, kept byte for byte in files.

`SETPOINT_UPDATE_SNAPSHOTS=1 pytest` rewrites them; the difference is then reviewed like code.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).with_name("snapshots")


def compare(name: str, text: str) -> None:
    """Hold a text against the file of that name, or rewrite the file when updating."""
    path = FOLDER / f"{name}.txt"
    data = (text.rstrip("\n") + "\n").encode()
    if os.environ.get("SETPOINT_UPDATE_SNAPSHOTS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return
    assert path.is_file(), f"there is no snapshot {path.name}; see {__file__}"
    assert data.decode() == path.read_bytes().decode(), f"differs from the snapshot {path.name}"
