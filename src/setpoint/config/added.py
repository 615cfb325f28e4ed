"""Sections that a package adds to a root which it does not own."""

from __future__ import annotations

from .base import Config
from .errors import DeclarationError
from .field import FieldInfo
from .meta import RESERVED, ConfigMeta, newer
from .role import Role


def add_section(
    root: type[Config], name: str, section: type[Config], *, role: Role | None = None
) -> None:
    """Give a root a further section, which is null until a layer sets something in it.

    While it is null it is no part of the fingerprint, so that other runs keep theirs.

    Arguments:
        root: the class to extend, for instance the training job; its subclasses get it as well.
        name: the section's name, a Python identifier.
        section: its class, or a family of variants.
        role: the role of the field; the root's own if not given.

    Raises:
        TypeError: if the name is taken or no identifier, or the section is no config class.
    """
    if not isinstance(section, ConfigMeta):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DeclarationError(
            f"{root.__name__}.{name}: {section!r} is no section; give a class derived from Config"
        )
    if not name.isidentifier() or name.startswith("_") or name in RESERVED:
        raise DeclarationError(f"{root.__name__}: {name!r} cannot be the name of a section")
    before = root.__setpoint__.added.get(name)
    if not (before and _same(before, section)) and (
        name in root.__setpoint__.fields or hasattr(root, name)
    ):
        raise DeclarationError(f"{root.__name__} has {name!r} already; choose another name")
    info = FieldInfo(default=None, role=role or root.__setpoint__.role, before=None)
    info.name, info.owner, info.annotation = name, root, section | None
    newer.add(name)
    for cls in _with_subclasses(root):
        cls.__setpoint__.fields[name] = info
        cls.__setpoint__.added[name] = section


def added_sections(config: Config) -> dict[str, Config]:
    """The added sections that are not null.

    Arguments:
        config: a root.

    Returns:
        the sections by name, in the order in which they were added.
    """
    values = {name: getattr(config, name) for name in type(config).__setpoint__.added}
    return {name: value for name, value in values.items() if value is not None}


def section_added(root: type[Config], name: str) -> type[Config] | None:
    """The class of an added section.

    Arguments:
        root: the root's class.
        name: one of its fields.

    Returns:
        the class; None for fields of the root's own.
    """
    return root.__setpoint__.added.get(name)


def _same(one: type[Config], other: type[Config]) -> bool:
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def _with_subclasses(root: type[Config]) -> list[type[Config]]:
    found = [root]
    for cls in root.__subclasses__():
        found += _with_subclasses(cls)
    return found
