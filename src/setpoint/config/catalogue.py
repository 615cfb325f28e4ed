"""Functions by name, of which some lie in modules that are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TypeVar

V = TypeVar("V")


class Catalogue(MutableMapping[str, V]):
    """A mapping that knows some of its names before it has what they stand for.

    Iterating gives all names and imports nothing, and so does `in`; taking a value imports the
    module that puts it here.
    """

    def __init__(self) -> None:
        self._present: dict[str, V] = {}
        self._waiting: dict[str, str] = {}

    def expect(self, module: str, *names: str) -> None:
        """Make names known without importing what brings them.

        Arguments:
            module: registers them when it is imported.
            names: of its functions.
        """
        for name in names:
            if name not in self._present:
                self._waiting[name] = module

    def __getitem__(self, name: str) -> V:
        # Taken out first: the module itself asks for its names while it is being imported.
        module = self._waiting.pop(name, None)
        if module is not None and name not in self._present:
            from importlib import import_module

            try:
                import_module(module)
            except BaseException:
                self._waiting[name] = module
                raise
        return self._present[name]

    def __setitem__(self, name: str, value: V) -> None:
        self._waiting.pop(name, None)
        self._present[name] = value

    def __delitem__(self, name: str) -> None:
        waited = self._waiting.pop(name, None) is not None
        if name in self._present or not waited:
            del self._present[name]

    def __contains__(self, name: object) -> bool:
        return name in self._present or name in self._waiting

    def __iter__(self) -> Iterator[str]:
        return iter([*self._present, *self._waiting])

    def __len__(self) -> int:
        return len(self._present) + len(self._waiting)
