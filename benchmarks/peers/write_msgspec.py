"""The tree as msgspec structs; also what tyro reads fastest."""

from __future__ import annotations

from setpoint.config.schema.field import Bounds

from .schema import Section, annotation, number

HEAD = """\
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field
"""


def classes(tree: list[Section]) -> str:
    """The source of the structs, without imports.

    Arguments:
        tree: the classes.

    Returns:
        the source.
    """
    return "".join(map(_section, tree))


def _section(section: Section) -> str:
    options = "forbid_unknown_fields=True, frozen=True, kw_only=True"
    if section.tag is not None:
        options += f", tag_field='type', tag={section.tag!r}"
    lines = ["", "", f"class {section.name}(Struct, {options}):", f"    {section.help!r}"]
    for one in section.fields:
        item = f"Annotated[{{}}, Meta({_limits(one.items)})]" if one.items else "{}"
        kind = annotation(one.kind, "{}", item)
        if one.bounds:
            kind = f"Annotated[{kind}, Meta({_limits(one.bounds)})]"
        default = "" if one.default is None else f" = {one.default}"
        if one.kind.nested:
            default = f" = field(default_factory=lambda: {one.default})"
        lines += ["", f"    {one.name}: {kind}{default}", f"    {one.help!r}"]
    return "\n".join(lines) + "\n"


def _limits(bounds: Bounds) -> str:
    named = (("gt", bounds.gt), ("ge", bounds.ge), ("lt", bounds.lt), ("le", bounds.le))
    return ", ".join(f"{name}={number(limit)}" for name, limit in named if limit is not None)
