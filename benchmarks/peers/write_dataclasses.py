"""The tree as dataclasses that check their ranges, for every peer that is built on them."""

from __future__ import annotations

from collections.abc import Iterator

from setpoint.config.schema.field import Bounds

from .schema import QUANTITY, Field, Section, annotation, is_quantity, number

HEAD = f"""\
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

QUANTITY = {QUANTITY!r}
"""


def classes(
    tree: list[Section],
    *,
    frozen: bool = True,
    tagged: bool = False,
    registry: str = "",
    literals: bool = True,
) -> str:
    """The source of the classes, without imports.

    Arguments:
        tree: the classes.
        frozen: whether instances refuse assignments.
        tagged: whether variants carry their tag in a field `type`.
        registry: the base of the families; else unions are `A | B`. Variants of any other base
            than `object` are registered by tag.
        literals: whether a closed vocabulary is a `Literal`; else it is any text.

    Returns:
        the source.
    """
    families = dict.fromkeys(section.family for section in tree if section.family)
    parts = [f"\n\nclass {name}({registry}):\n    pass\n" for name in families if registry]
    return "".join(
        [*parts, *(_section(section, frozen, tagged, registry, literals) for section in tree)]
    )


def _section(section: Section, frozen: bool, tagged: bool, registry: str, literals: bool) -> str:
    base = f"({section.family})" if registry and section.family else ""
    options = "frozen=True, kw_only=True" if frozen else "kw_only=True"
    lines = ["", "", f"@dataclass({options})", f"class {section.name}{base}:"]
    if base and registry != "object":
        lines.insert(2, f"@{section.family}.register_subclass({section.tag!r})")
    lines.append(f"    {_doc(section.help)}")
    if tagged and section.tag is not None:
        kind = f"Literal[{section.tag!r}]" if literals else "str"
        lines += ["", f"    type: {kind} = {section.tag!r}"]
    checks: list[str] = []
    for field in section.fields:
        family = field.family if registry else None
        kind = family or annotation(field.kind, "{}" if literals else "Any")
        if not literals and kind.startswith("Literal"):
            kind = "str"
        # OmegaConf has no unions: a config group fills the field.
        default = " = MISSING" if not literals and field.family else _default(field)
        lines += ["", f"    {field.name}: {kind}{default}"]
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
        yield f"if {guard}not all({condition} for item in {value}):"
        yield f"    raise ValueError(f'{field.name} = {{{value}!r}} is out of range')"
    if is_quantity(field.kind):
        yield f"if re.fullmatch(QUANTITY, {value}) is None:"
        yield f"    raise ValueError(f'{field.name} = {{{value}!r}} is no count with a unit')"


def _conditions(bounds: Bounds, value: str) -> Iterator[str]:
    for sign, limit in ((">", bounds.gt), (">=", bounds.ge), ("<", bounds.lt), ("<=", bounds.le)):
        if limit is not None:
            yield f"{value} {sign} {number(limit)}"
    if bounds.pattern is not None:
        yield f"re.fullmatch({bounds.pattern!r}, {value})"
