"""The tree as dataclasses for tyro, with ranges checked as dataclasses do it."""

from __future__ import annotations

from collections.abc import Iterator

from setpoint.config.field import Bounds

from .schema import QUANTITY, Field, Section, annotation, is_quantity

HEAD = f"""\
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

QUANTITY = {QUANTITY!r}
"""
TAIL = """

def main():
    job = tyro.cli(tyro.conf.AvoidSubcommands[Job], default=PRESET)
    print(chosen(job))
"""


def module(tree: list[Section], preset: str, chosen: str) -> str:
    """The source of a program that reads its command line.

    Arguments:
        tree: the classes.
        preset: the configuration to start from, as an expression.
        chosen: an expression over `job` for what the program prints.

    Returns:
        a module with `main`.
    """
    parts = [HEAD, *map(_section, tree), f"\n\nPRESET = {preset}\n"]
    parts.append(f"\n\ndef chosen(job):\n    return {chosen}\n")
    return "".join([*parts, TAIL])


def _section(section: Section) -> str:
    lines = ["", "", "@dataclass(frozen=True, kw_only=True)", f"class {section.name}:"]
    lines.append(f"    {_doc(section.help)}")
    checks: list[str] = []
    for field in section.fields:
        lines += ["", f"    {field.name}: {annotation(field.kind, '{}')}{_default(field)}"]
        lines.append(f"    {_doc(field.help)}")
        checks += _checks(field)
    if checks:
        lines += ["", "    def __post_init__(self):", *(f"        {line}" for line in checks)]
    return "\n".join(lines) + "\n"


def _doc(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"""{escaped}"""'


def _default(field: Field) -> str:
    if field.default is None:
        return ""
    # A dataclass refuses mutable defaults only, but shared sections would be no better.
    is_plain = not field.kind.nested and field.default != "{}"
    return (
        f" = {field.default}" if is_plain else f" = field(default_factory=lambda: {field.default})"
    )


def _checks(field: Field) -> Iterator[str]:
    value = f"self.{field.name}"
    guard = f"{value} is not None and "
    if field.bounds is not None:
        for condition in _conditions(field.bounds, value):
            yield f"if {guard}not {condition}:"
            yield f"    raise ValueError(f'{field.name} = {{{value}!r}} is out of range')"
    if field.items is not None:
        condition = " and ".join(_conditions(field.items, "item"))
        yield f"if not all({condition} for item in {value}):"
        yield f"    raise ValueError(f'{field.name} = {{{value}!r}} is out of range')"
    if is_quantity(field.kind):
        yield f"if re.fullmatch(QUANTITY, {value}) is None:"
        yield f"    raise ValueError(f'{field.name} = {{{value}!r}} is no count with a unit')"


def _conditions(bounds: Bounds, value: str) -> Iterator[str]:
    for sign, limit in ((">", bounds.gt), (">=", bounds.ge), ("<", bounds.lt), ("<=", bounds.le)):
        if limit is not None:
            yield f"{value} {sign} {limit!r}"
    if bounds.pattern is not None:
        yield f"re.fullmatch({bounds.pattern!r}, {value})"
