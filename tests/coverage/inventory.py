"""The keys of four training systems' configurations that Setpoint has to answer for.

`inventory.json` lists them with the capability they belong to. 410 are those that the systems' own
documents name; the others were found in their code. Eight sections are keys of their own: an
inference job takes them over whole. What a system only computes is listed, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("inventory.json")


class Key(NamedTuple):
    """One key.

    Arguments:
        system: whose it is.
        key: its dotted name there.
        capability: what it is about.
        kind: `key`, `section`, or `computed` for what can only be read.
        in_source: whether it has to be answered for.
    """

    system: str
    key: str
    capability: str
    kind: str
    in_source: bool

    @property
    def name(self) -> str:
        """System and key, which no other key has."""
        return f"{self.system} {self.key}"


def inventory() -> dict[str, Key]:
    """All keys.

    Returns:
        keys by name, in the order of the systems' documents.
    """
    keys = [Key(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))]
    return {key.name: key for key in keys}


def capabilities() -> dict[str, list[Key]]:
    """The keys by what they are about.

    Returns:
        keys by capability.
    """
    found: dict[str, list[Key]] = {}
    for key in inventory().values():
        found.setdefault(key.capability, []).append(key)
    return found
