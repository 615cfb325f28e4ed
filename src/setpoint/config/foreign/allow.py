"""Which modules an import path may name: what somebody trusted, never what a file says.

The list cannot be part of a configuration, since whoever writes the path would write the list as
well. It comes from the environment, the command line and the program, and from the classes that
declare import paths, which are trusted because they are imported already.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

VARIABLE = "SETPOINT_IMPORTS"
_named: set[str] = set()


def allow_imports(*modules: str) -> None:
    """Allow configurations of this process to name what is in some modules.

    `--import NAME` and `module:function` on the command line do the same.

    Arguments:
        modules: modules or packages, such as `"my_package"`; what lies below them is included.
    """
    _named.update(modules)


def allowed_modules(trusted: Sequence[str] = ()) -> tuple[str, ...]:
    """The modules that an import path may name.

    Arguments:
        trusted: what the class that declares the path trusts by itself; the environment variable
            SETPOINT_IMPORTS, a list divided by commas, replaces it.

    Returns:
        the modules, sorted.
    """
    given = os.environ.get(VARIABLE)
    words = trusted if given is None else [word.strip() for word in given.split(",")]
    return tuple(sorted({*filter(None, words), *_named}))


def is_allowed(name: str, modules: Sequence[str]) -> bool:
    """Whether a module, or a name inside one, is among the allowed ones or below them.

    Arguments:
        name: a dotted name.
        modules: what `allowed_modules` returned.

    Returns:
        True for `torch.optim.Adagrad` where `torch.optim` is allowed; `torch.optimizers` is not.
    """
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


def not_allowed(name: str, modules: Sequence[str]) -> str:
    """The sentence for a path that may not be imported.

    Arguments:
        name: the path, or the module that it leads to.
        modules: what would be allowed.

    Returns:
        what is allowed, and how to allow more.
    """
    top = name.partition(".")[0].partition(":")[0]
    return (
        f"{name} may not be imported: allowed are {', '.join(modules) or 'no modules'}. If you "
        f"trust it, name it with --import {top} or in {VARIABLE}"
    )
