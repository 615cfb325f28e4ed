"""The tree as chz classes."""

from __future__ import annotations

from setpoint.config.schema.field import Bounds

from .schema import Section, annotation, number

HEAD = """\
from typing import Literal

import chz
from chz import validators


def each(check):
    def run(self, name):
        for item in getattr(self, name):
            check(item)
    return run


def inside(gt=None, ge=None, lt=None, le=None):
    def check(value):
        if not ((gt is None or value > gt) and (ge is None or value >= ge)
                and (lt is None or value < lt) and (le is None or value <= le)):
            raise ValueError(f"{value!r} is out of range")
    return check
"""


def classes(tree: list[Section]) -> str:
    """The source of the classes, without imports.

    Arguments:
        tree: the classes.

    Returns:
        the source.
    """
    families = dict.fromkeys(section.family for section in tree if section.family)
    parts = [f"\n\n@chz.chz\nclass {name}:\n    pass\n" for name in families]
    return "".join([*parts, *map(_section, tree)])


def _section(section: Section) -> str:
    base = f"({section.family})" if section.family else ""
    lines = ["", "", "@chz.chz(typecheck=True)", f"class {section.name}{base}:"]
    lines.append(f"    {section.help!r}")
    for field in section.fields:
        kind = field.family or annotation(field.kind, "{}")
        options = [f"doc={field.help!r}"]
        if field.kind.nested:
            options.append(f"default_factory=lambda: {field.default}")
        else:
            options.append(f"default={field.default}")
        checks = _checks(field.bounds)
        if field.items is not None:
            checks.append(f"each(inside({_limits(field.items)}))")
        if checks:
            options.append(f"validator=[{', '.join(checks)}]")
        lines.append(f"    {field.name}: {kind} = chz.field({', '.join(options)})")
    return "\n".join(lines) + "\n"


def _named(bounds: Bounds) -> list[tuple[str, float]]:
    named = (("gt", bounds.gt), ("ge", bounds.ge), ("lt", bounds.lt), ("le", bounds.le))
    return [(name, limit) for name, limit in named if limit is not None]


def _limits(bounds: Bounds) -> str:
    return ", ".join(f"{name}={number(limit)}" for name, limit in _named(bounds))


def _checks(bounds: Bounds | None) -> list[str]:
    return (
        [f"validators.{name}({number(limit)})" for name, limit in _named(bounds)] if bounds else []
    )
