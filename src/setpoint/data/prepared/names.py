"""How prepared data is recognised, without reading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

KIND = "setpoint prepared data"
MANIFEST = "manifest.json"


def is_prepared(folder: Path) -> bool:
    """Whether a folder holds prepared data, of any version, whole or damaged."""
    try:
        with (folder / MANIFEST).open("rb") as file:
            return KIND.encode() in file.read(200)
    except OSError:
        return False


class Facts(NamedTuple):
    """What a manifest says that can be compared without reading the data.

    Arguments:
        tokenizer: `Tokenizer.name`.
        sizes: bytes of each file.
    """

    tokenizer: str
    sizes: dict[str, int]


def read_facts(folder: Path) -> Facts | None:
    """The facts of prepared data; None where the manifest is damaged, which reading it says."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sizes = {str(name): int(size) for name, (size, _) in found["files"].items()}
        return Facts(str(found["tokenizer"]), sizes)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
