"""Fields that hold a callable by its import path: `Callable[..., X]`, `type[X]`, `ImportPath`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Invalid
from ..import_path import ImportPath
from .base import FieldType, shown

if TYPE_CHECKING:
    from ..origin import Origin


class ImportPathType(FieldType):
    """A callable or a class by its import path.

    Arguments:
        base: for `type[X]` the class that it must be or derive from; None for any callable.
        trusted: the modules that the declaring class trusts: its own package.
    """

    __slots__ = ("base", "trusted")

    def __init__(self, base: type | None = None, trusted: tuple[str, ...] = ()) -> None:
        self.base = base
        self.trusted = trusted

    def describe(self) -> str:
        """See `FieldType.describe`."""
        if self.base is None:
            return "an import path such as 'package.module.name'"
        return f"the import path of a class that is a {self.base.__name__}"

    def read(self, value: object, origin: Origin) -> ImportPath:
        """See `FieldType.read`."""
        wanted = self.base
        if isinstance(value, str | ImportPath):
            return ImportPath.read(value).trusting(self.trusted, wanted)
        if not callable(value):
            raise self.refuse(value)
        if wanted is not None and not (isinstance(value, type) and issubclass(value, wanted)):
            raise Invalid(f"is not a class that is a {wanted.__name__}: got {shown(value)}")
        return ImportPath.read(value).trusting(self.trusted, wanted)

    def dump(self, value: ImportPath) -> str:
        """See `FieldType.dump`."""
        return value.text
