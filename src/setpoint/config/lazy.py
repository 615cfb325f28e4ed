"""Names of a package that are imported when they are first used, as its stub file lists them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def exports(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Functions `__getattr__` and `__dir__` and the list `__all__` of a package.

    The file `__init__.pyi` beside the package's `__init__.py` is the one list of its names, in
    lines `from .home import Name as Name`; type checkers and editors read it as well.
    """
    module = sys.modules[package]
    with open(f"{module.__file__}i", encoding="utf-8") as stub:
        lines = [line.split() for line in stub if line.startswith("from ")]
    homes = {words[-1]: words[1] for words in lines}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name], package), name)
        setattr(module, name, value)
        return value

    return get, lambda: sorted({*vars(module), *homes}), sorted(homes)
