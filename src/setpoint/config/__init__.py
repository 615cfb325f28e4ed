"""The configuration kernel: define, construct, override, validate, compose, serialize.

It knows nothing of training and imports neither torch nor anything heavy. What is used by few
commands (files, records, differences) is imported from its own module by those commands.
"""

from typing import TYPE_CHECKING, Any

from .base import Config, is_set
from .errors import Invalid, RunError, SetpointError, UnresolvedError
from .field import derived, field
from .free import Free
from .hooks import check, dead, derive
from .problem import Caution, ConfigError, Problem
from .quantity import Duration, Length, Period
from .reference import ref
from .registry import modifier, preset
from .resolve import resolve
from .role import BUDGET, IDENTITY, RUNTIME, Role
from .secret import Secret

if TYPE_CHECKING:
    from .dtype import DType as DType
    from .import_path import ImportPath as ImportPath
    from .size import ByteSize as ByteSize

# Value classes that few configurations hold are imported when somebody asks for them.
_LAZY = {"ByteSize": ".size", "DType": ".dtype", "ImportPath": ".import_path"}

__all__ = [
    "BUDGET",
    "IDENTITY",
    "RUNTIME",
    "ByteSize",
    "Caution",
    "Config",
    "ConfigError",
    "DType",
    "Duration",
    "Free",
    "ImportPath",
    "Invalid",
    "Length",
    "Period",
    "Problem",
    "Role",
    "RunError",
    "Secret",
    "SetpointError",
    "UnresolvedError",
    "check",
    "dead",
    "derive",
    "derived",
    "field",
    "is_set",
    "modifier",
    "preset",
    "ref",
    "resolve",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LAZY[name], __name__), name)
    return value
