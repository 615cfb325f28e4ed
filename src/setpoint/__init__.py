"""Setpoint: training from one configuration that fully determines the run.

`import setpoint as sp` offers the words that a user's own configuration needs; each is imported
when it is first used, so that the import itself costs nothing.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from setpoint.cli.own import load as load
    from setpoint.cli.own import run as run
    from setpoint.config import BUDGET as BUDGET
    from setpoint.config import IDENTITY as IDENTITY
    from setpoint.config import RUNTIME as RUNTIME
    from setpoint.config import Builds as Builds
    from setpoint.config import Caution as Caution
    from setpoint.config import Component as Component
    from setpoint.config import Config as Config
    from setpoint.config import ConfigError as ConfigError
    from setpoint.config import Foreign as Foreign
    from setpoint.config import Free as Free
    from setpoint.config import ImportPath as ImportPath
    from setpoint.config import Invalid as Invalid
    from setpoint.config import Partial as Partial
    from setpoint.config import Problem as Problem
    from setpoint.config import Role as Role
    from setpoint.config import Rule as Rule
    from setpoint.config import Secret as Secret
    from setpoint.config import SetpointError as SetpointError
    from setpoint.config import add_section as add_section
    from setpoint.config import allow_imports as allow_imports
    from setpoint.config import building as building
    from setpoint.config import cautions_of as cautions_of
    from setpoint.config import check as check
    from setpoint.config import component as component
    from setpoint.config import compose as compose
    from setpoint.config import dead as dead
    from setpoint.config import derive as derive
    from setpoint.config import derived as derived
    from setpoint.config import differences as differences
    from setpoint.config import field as field
    from setpoint.config import fingerprint as fingerprint
    from setpoint.config import is_set as is_set
    from setpoint.config import modifier as modifier
    from setpoint.config import partial as partial
    from setpoint.config import preset as preset
    from setpoint.config import record_files as record_files
    from setpoint.config import ref as ref
    from setpoint.config import resolve as resolve
    from setpoint.config import verify as verify
    from setpoint.editor_schema.document import json_schema as json_schema
    from setpoint.units import ByteSize as ByteSize
    from setpoint.units import DType as DType
    from setpoint.units import Duration as Duration
    from setpoint.units import Length as Length
    from setpoint.units import Period as Period

# The words of the kernel, and where the others lie.
_OF_CONFIG = (
    "BUDGET", "IDENTITY", "RUNTIME", "Builds", "Caution", "Component", "Config", "ConfigError",
    "Foreign", "Free", "ImportPath", "Invalid", "Partial", "Problem", "Role", "Rule", "Secret",
    "SetpointError", "add_section", "allow_imports", "building", "cautions_of", "check",
    "component", "compose", "dead", "derive", "derived", "differences", "field", "fingerprint",
    "is_set", "modifier", "partial", "preset", "record_files", "ref", "resolve", "verify",
)  # fmt: skip
_ELSEWHERE = {
    "ByteSize": "setpoint.units",
    "DType": "setpoint.units",
    "Duration": "setpoint.units",
    "Length": "setpoint.units",
    "Period": "setpoint.units",
    "json_schema": "setpoint.editor_schema.document",
    "load": "setpoint.cli.own",
    "run": "setpoint.cli.own",
}
__all__ = sorted([*_OF_CONFIG, *_ELSEWHERE])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    module = "setpoint.config" if name in _OF_CONFIG else _ELSEWHERE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
