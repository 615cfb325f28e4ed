"""Tags: marks on fields across sections, by which all of them are set or swept at once."""

from __future__ import annotations

from collections.abc import Iterator

from .base import Config
from .errors import Invalid
from .field import FieldInfo
from .origin import Path
from .suggest import nearest, schema
from .walk import sections

TAG = "tag"  # the first word of the path that sets one


def reached(root: Config, tag: str) -> Iterator[tuple[Path, Config, FieldInfo]]:
    """The fields of a configuration, as it stands, that carry a tag.

    Arguments:
        root: a draft or a resolved config.
        tag: the tag.

    Returns:
        the path, section and description of each field.
    """
    for path, section in list(sections(root)):
        for name, info in type(section).__setpoint__.fields.items():
            if tag in info.tags:
                yield (*path, name), section, info


def known_tags(root: type[Config]) -> dict[str, list[str]]:
    """All tags of a tree of config classes, with the fields they reach in any variant.

    Arguments:
        root: the root's class.

    Returns:
        dotted paths by tag, both in order of declaration.
    """
    found: dict[str, list[str]] = {}
    for path, info in schema(root):
        for tag in info.tags:
            paths = found.setdefault(tag, [])
            if path not in paths:
                paths.append(path)
    return found


def unknown_tag(root: type[Config], tag: str) -> Invalid:
    """The error for a tag that reaches nothing.

    Arguments:
        root: the root's class.
        tag: as written.

    Returns:
        the error, to be raised by the caller.
    """
    known = known_tags(root)
    if tag in known:
        paths = ", ".join(known[tag])
        return Invalid(f"reaches no field of this configuration; it is a mark of {paths}")
    carrying = [t for t, paths in known.items() if any(p.rpartition(".")[2] == tag for p in paths)]
    called = [t for _, info in schema(root) if tag in info.also_called for t in info.tags]
    close = carrying or called or nearest(tag, known, 1)
    hint = f"Did you mean tag.{close[0]}?" if close else ""
    return Invalid(f"there is no tag {tag!r}", tuple(known), hint=hint)
