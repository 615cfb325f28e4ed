"""Importing what an import path names, from allowed modules only."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import SetpointError
from .allow import is_allowed, not_allowed

if TYPE_CHECKING:
    from ..import_path import ImportPath


def load(path: ImportPath) -> Any:
    """Import what a path names.

    The object must come from an allowed module, too: `torch.optim` being allowed does not open what
    its modules happen to have imported.

    Arguments:
        path: the path.

    Returns:
        the callable.

    Raises:
        SetpointError: if it may not be imported, is not there, or cannot be called.
    """
    refused = path.refusal()
    if refused:
        raise SetpointError(refused)
    module, colon, name = path.text.partition(":")
    found = _inside(_module(module, path), name.split("."), path) if colon else _dotted(path)
    home = getattr(found, "__module__", None)
    if isinstance(home, str) and not _is_home(home, path.allowed()):
        raise SetpointError(f"{path}: {not_allowed(home, path.allowed())}")
    if not callable(found):
        name = type(found).__name__
        kind = "a module" if isinstance(found, ModuleType) else f"an object of type {name}"
        raise SetpointError(f"{path} is {kind}, which cannot be called")
    if path.base is not None and not (isinstance(found, type) and issubclass(found, path.base)):
        raise SetpointError(f"{path} is not a class that is a {path.base.__name__}")
    return found


def _is_home(module: str, allowed: tuple[str, ...]) -> bool:
    """Whether an object may come from a module: an allowed one, or its package's private core."""
    package, _, rest = module.partition(".")
    core = rest.startswith("_") and any(one.partition(".")[0] == package for one in allowed)
    return core or is_allowed(module, allowed)


def _module(name: str, path: ImportPath) -> ModuleType:
    from ..user_code import import_user_module

    return import_user_module(name, str(path), trusted=False)


def _dotted(path: ImportPath) -> Any:
    """What `a.b.c` names, where nothing says how much of it is the module."""
    parts = path.text.split(".")
    found: Any = _module(parts[0], path)
    for at, part in enumerate(parts[1:], start=1):
        name = ".".join(parts[:at])
        # A package knows its modules only once they are imported.
        if isinstance(found, ModuleType) and not hasattr(found, part) and _is_module(name, part):
            found = _module(f"{name}.{part}", path)
        else:
            found = _inside(found, [part], path, f"{name}.{part}")
    return found


def _is_module(package: str, name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(f"{package}.{name}") is not None
    except (ImportError, ValueError):
        return False


def _inside(node: Any, names: list[str], path: ImportPath, way: str = "") -> Any:
    """What lies inside a module or class; other modules that it has imported do not count."""
    for name in names:
        if not hasattr(node, name):
            from ..suggest import did_you_mean

            meant = did_you_mean(name, [key for key in dir(node) if key[:1] != "_"], " ")
            where = getattr(node, "__name__", type(node).__name__)
            raise SetpointError(f"{path}: {where} has no {name!r}.{meant}")
        node = getattr(node, name)
        # On the way down to an allowed module lie the packages around it.
        if isinstance(node, ModuleType) and node.__name__ != way:
            modules = path.allowed()
            if not is_allowed(node.__name__, modules):
                raise SetpointError(f"{path}: {not_allowed(node.__name__, modules)}")
    return node
