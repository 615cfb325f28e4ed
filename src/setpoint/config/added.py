"""Sections that a package adds to a root which it does not own."""

from __future__ import annotations

from typing import Any

from .base import Config, state_of
from .errors import DeclarationError
from .field import FieldInfo
from .meta import RESERVED, ConfigMeta, newer
from .role import Role


class Added:
    """Where the instances of a root keep an added section: its slots are fixed, its state is not.

    Arguments:
        name: the field.
        section: the class of the section.
    """

    def __init__(self, name: str, section: type[Config]) -> None:
        self.name = name
        self.section = section

    def __get__(self, instance: Config | None, owner: type[Config]) -> Any:
        if instance is None:
            return self
        state = instance._state  # pyright: ignore[reportPrivateUsage]
        if state is None or self.name not in state.added:
            raise AttributeError(self.name)  # untouched, as an empty slot is
        return state.added[self.name]

    def __set__(self, instance: Config, value: object) -> None:
        state_of(instance).added[self.name] = value

    def __delete__(self, instance: Config) -> None:
        del state_of(instance).added[self.name]


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
    known = root.__setpoint__.fields.get(name)
    place: Any = vars(root).get(name)
    if isinstance(place, Added) and _same(place.section, section):
        place.section = section  # the module was imported anew
    elif known is not None or hasattr(root, name):
        raise DeclarationError(f"{root.__name__} has {name!r} already; choose another name")
    else:
        type.__setattr__(root, name, Added(name, section))
    info = FieldInfo(default=None, role=role or root.__setpoint__.role, before=None)
    info.name, info.owner, info.annotation = name, root, section | None
    newer.add(name)
    for cls in _with_subclasses(root):
        cls.__setpoint__.fields[name] = info


def added_sections(config: Config) -> dict[str, Config]:
    """The added sections that are not null.

    Arguments:
        config: a root.

    Returns:
        the sections by name, in the order in which they were added.
    """
    cls = type(config)
    names = [name for name in cls.__setpoint__.fields if section_added(cls, name) is not None]
    return {name: value for name in names if (value := getattr(config, name)) is not None}


def section_added(root: type[Config], name: str) -> type[Config] | None:
    """The class of an added section.

    Arguments:
        root: the root's class.
        name: one of its fields.

    Returns:
        the class; None for fields of the root's own.
    """
    place: object = getattr(root, name, None)
    return place.section if isinstance(place, Added) else None


def _same(one: type[Config], other: type[Config]) -> bool:
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def _with_subclasses(root: type[Config]) -> list[type[Config]]:
    found = [root]
    for cls in root.__subclasses__():
        found += _with_subclasses(cls)
    return found
