"""The fields that answers name, as Setpoint's classes declare them."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

from setpoint.cli.fields import field_rows
from setpoint.config import Config
from setpoint.infer.config import Inference
from setpoint.train.config import Job


def roots() -> dict[str, type[Config]]:
    """The root classes by what stands before the colon of a field.

    Returns:
        classes by prefix.
    """
    return {"": Job, "inference": Inference}


class Declared(NamedTuple):
    """One field, or a value of one.

    Arguments:
        text: as the answer names it.
        rows: how `setpoint list fields` describes it, in each variant that has it.
    """

    text: str
    rows: tuple[dict[str, Any], ...]


@functools.cache
def _rows(prefix: str) -> dict[str, tuple[dict[str, Any], ...]]:
    found: dict[str, tuple[dict[str, Any], ...]] = {}
    for row in field_rows(roots()[prefix]):
        found[row["path"]] = (*found.get(row["path"], ()), row)
    return found


def declared(text: str) -> Declared:
    """Look a field up.

    Arguments:
        text: `PATH`, `PATH=VALUE` or `ROOT:PATH`.

    Returns:
        the field.

    Raises:
        LookupError: if there is no such root, field or value.
    """
    prefix, colon, rest = text.partition(":")
    prefix, rest = (prefix, rest) if colon else ("", text)
    if prefix not in roots():
        raise LookupError(f"{text}: there is no root {prefix!r}")
    path, _, value = rest.partition("=")
    rows = _rows(prefix).get(path.strip(), ())
    if not rows:
        raise LookupError(f"{text}: there is no field {path.strip()!r}")
    value = value.strip()
    if value and not any(re.search(rf"(?<!\w){re.escape(value)}(?!\w)", r["type"]) for r in rows):
        kinds = ", or ".join(row["type"] for row in rows)
        raise LookupError(f"{text}: {value!r} is no value of {path.strip()}: {kinds}")
    return Declared(text, rows)
