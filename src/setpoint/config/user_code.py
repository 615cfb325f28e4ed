"""Code of the user's own: imported only where it was named, and its errors told in words."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .errors import SetpointError
from .origin import short_name


def import_user_module(name: str, source: str) -> ModuleType:
    """Import a module that somebody named, from the working folder as well.

    Arguments:
        name: the module.
        source: what was typed, for errors.

    Returns:
        the module.

    Raises:
        SetpointError: if there is no such module, or importing it fails.
    """
    import importlib

    try:
        here = os.getcwd()
    except OSError as error:
        raise SetpointError(
            f"{source}: modules are looked for in the working directory, which cannot be "
            f"read: {error.strerror}"
        ) from None
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except SetpointError:
        raise
    except ModuleNotFoundError as error:
        raise SetpointError(f"{source}: there is no module {error.name!r}") from None
    except Exception as error:
        if isinstance(error, ValueError | TypeError) and (not name or name.startswith(".")):
            raise SetpointError(
                f"{source}: {name!r} is not a module; expected module:function"
            ) from None
        raise SetpointError(f"{source}: importing {name} failed: {in_words(error)}") from error


def call_user_function(function: Callable[..., Any], title: str, *args: Any, **kwargs: Any) -> Any:
    """Call a preset or modifier.

    Arguments:
        function: the function.
        title: what it is, for errors.
        args, kwargs: its arguments.

    Returns:
        what it returns.

    Raises:
        SetpointError: if it raises anything; its own `SetpointError`s pass unchanged.
    """
    try:
        return function(*args, **kwargs)
    except SetpointError:
        raise
    except Exception as error:
        raise SetpointError(f"{title} failed: {in_words(error)}") from error


def in_words(error: Exception) -> str:
    """An exception with the line that raised it.

    Arguments:
        error: any exception.

    Returns:
        for instance `ZeroDivisionError: division by zero (own.py:12)`.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({short_name(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
