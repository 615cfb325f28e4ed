"""Packages that add presets, modifiers, variants and sections, found by their entry points."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from .errors import SetpointError
from .user_code import import_user_module

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "setpoint.plugins"
_loaded: set[str] = set()


@functools.cache
def _installed() -> tuple[EntryPoint, ...]:
    # What is installed is looked up once in a process, however many errors it meets.
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def load_plugins(broken: list[SetpointError] | None = None) -> bool:
    """Import the modules that installed packages name as plugins, each once.

    Looking for them takes longer than all of `setpoint check`, so that they are asked for only
    where a name is not known without them, and where everything is listed.

    Arguments:
        broken: gets the errors of plugins that cannot be imported; None raises the first.

    Returns:
        whether any module was imported that was not before.

    Raises:
        SetpointError: if a plugin cannot be imported, naming the package that brings it.
    """
    found = False
    for entry in _installed():
        if entry.value in _loaded:
            continue
        package = entry.dist.name if entry.dist else "a package"
        try:
            import_user_module(entry.module, f"the plugin {entry.name!r} of {package}")
        except SetpointError as error:
            said = SetpointError(f"{error}; uninstall {package} or repair it")
            if broken is None:
                raise said from None
            broken.append(said)
            continue
        _loaded.add(entry.value)
        found = True
    return found
