"""Names of a package, imported on first use, as listed in its stub file."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

# Not from `typing`, which accounts for most of the time of `import setpoint`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def exports(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Functions `__getattr__` and `__dir__`, and the list `__all__`, for a package.

    `__init__.pyi` next to the package's `__init__.py` is the only list of its names, in lines `from
    .home import Name as Name`; type checkers and editors read it as well.
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


class CallablePackage(ModuleType):
    """A package that can be called like its function of the same name.

    `sp.train(job)` still works after `import setpoint.train`, which replaces the function by the
    package.
    """

    @property
    def __wrapped__(self) -> Callable[..., object]:
        return getattr(self, self.__name__.rpartition(".")[2])

    def __call__(self, *arguments: object, **options: object) -> object:
        """Call the function."""
        return self.__wrapped__(*arguments, **options)
