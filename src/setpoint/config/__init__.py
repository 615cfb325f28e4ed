"""The configuration kernel: define, construct, override, validate, compose, serialize.

It knows nothing of training and imports neither torch nor anything heavy. What is used by few
commands (files, records, differences) is imported from its own module by those commands.
"""

from .base import Config, is_set
from .errors import Invalid, RunError, SetpointError, UnresolvedError
from .field import derived, field
from .free import Free
from .hooks import check, dead, derive
from .problem import Caution, ConfigError, Problem
from .quantity import Duration, Period
from .registry import modifier, preset
from .resolve import resolve
from .role import BUDGET, IDENTITY, RUNTIME, Role
from .secret import Secret

__all__ = [
    "BUDGET",
    "IDENTITY",
    "RUNTIME",
    "Caution",
    "Config",
    "ConfigError",
    "Duration",
    "Free",
    "Invalid",
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
    "resolve",
]
