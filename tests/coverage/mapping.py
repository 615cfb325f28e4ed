"""What Setpoint answers to each key: `mapping/CAPABILITY.toml`.

A table of a file is named after a key, `["SYSTEM KEY"]`, and holds one of

    fields = ["model.dim", "model.norm=layer_norm", "inference:batch.micro_size"]
    how = "what does it instead of a field"
    refused = "why there is no such thing"
    later = "what it waits for"

`fields` and `how` may both be given, and need `tests`, ids as pytest has them: what shows that it
works. `note` says what differs from the key. `mapping/weaknesses.toml` is of the same form; its
tables are named as one likes and say what it is `about`.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).with_name("mapping")
WEAKNESSES = "weaknesses"
PARTS = {"fields", "how", "refused", "later", "tests", "note", "about"}


class Answer(NamedTuple):
    """What is said of one key.

    Arguments:
        name: the key, or the name of a weakness.
        fields: paths, some with the value that is meant.
        how: what does it where no field does, or beside them.
        refused: why there is no such thing.
        later: what it waits for.
        tests: ids of tests.
        note: what differs.
        about: what a weakness is.
    """

    name: str
    fields: tuple[str, ...] = ()
    how: str = ""
    refused: str = ""
    later: str = ""
    tests: tuple[str, ...] = ()
    note: str = ""
    about: str = ""

    @property
    def state(self) -> str:
        """`answered`, `refused` or `open`."""
        if self.refused:
            return "refused"
        return "open" if self.later else "answered"


def file_of(capability: str) -> Path:
    """Where the answers of a capability are.

    Arguments:
        capability: as the inventory calls it.

    Returns:
        the path, whether it exists or not.
    """
    return FOLDER / f"{slug(capability)}.toml"


def slug(capability: str) -> str:
    """A capability's name as that of a file.

    Arguments:
        capability: as the inventory calls it.

    Returns:
        lower case, with hyphens.
    """
    return re.sub(r"[^a-z0-9]+", "-", capability.lower())


def answers(capability: str) -> dict[str, Answer]:
    """What is said of the keys of a capability.

    Arguments:
        capability: as the inventory calls it, or `weaknesses`.

    Returns:
        answers by key; empty where none is said yet.
    """
    path = file_of(capability)
    if not path.exists():
        return {}
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: _answer(name, table) for name, table in tables.items()}


def _answer(name: str, table: dict[str, Any]) -> Answer:
    unknown = table.keys() - PARTS
    assert not unknown, f"{name}: unknown {sorted(unknown)}"
    lists = {part: tuple(table.get(part, ())) for part in ("fields", "tests")}
    texts = {part: table.get(part, "") for part in PARTS - lists.keys()}
    return Answer(name, **lists, **texts)


def problems_of(answer: Answer) -> list[str]:
    """What an answer lacks, or says twice.

    Arguments:
        answer: any.

    Returns:
        sentences; empty if it is whole.
    """
    given = [part for part in ("refused", "later") if getattr(answer, part)]
    given += ["fields or how"] if answer.fields or answer.how else []
    found: list[str] = []
    if len(given) != 1:
        said = " and ".join(given) or "nothing"
        found.append(f"{answer.name}: says {said}; one of fields or how, refused, later is needed")
    if answer.state == "answered" and not answer.tests:
        found.append(f"{answer.name}: no test shows it")
    return found
