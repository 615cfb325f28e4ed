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
    from setpoint.config import ByteSize as ByteSize
    from setpoint.config import Caution as Caution
    from setpoint.config import Config as Config
    from setpoint.config import ConfigError as ConfigError
    from setpoint.config import DType as DType
    from setpoint.config import Duration as Duration
    from setpoint.config import Free as Free
    from setpoint.config import ImportPath as ImportPath
    from setpoint.config import Invalid as Invalid
    from setpoint.config import Length as Length
    from setpoint.config import Period as Period
    from setpoint.config import Problem as Problem
    from setpoint.config import Role as Role
    from setpoint.config import Secret as Secret
    from setpoint.config import SetpointError as SetpointError
    from setpoint.config import check as check
    from setpoint.config import dead as dead
    from setpoint.config import derive as derive
    from setpoint.config import derived as derived
    from setpoint.config import field as field
    from setpoint.config import is_set as is_set
    from setpoint.config import modifier as modifier
    from setpoint.config import preset as preset
    from setpoint.config import ref as ref
    from setpoint.config import resolve as resolve
    from setpoint.config.added import add_section as add_section
    from setpoint.config.building import building as building
    from setpoint.config.component import component as component
    from setpoint.config.compose import compose as compose
    from setpoint.config.difference import differences as differences
    from setpoint.config.fingerprint import fingerprint as fingerprint
    from setpoint.config.foreign.allow import allow_imports as allow_imports
    from setpoint.config.foreign.partial import Partial as Partial
    from setpoint.config.foreign.partial import partial as partial
    from setpoint.config.foreign.section import Foreign as Foreign
    from setpoint.config.json_schema.document import json_schema as json_schema
    from setpoint.config.record import record_files as record_files
    from setpoint.config.typed import Builds as Builds
    from setpoint.config.typed import Component as Component
    from setpoint.config.verify import cautions_of as cautions_of
    from setpoint.config.verify import verify as verify

# Where each word lies, for those that are not of `setpoint.config` itself.
_ELSEWHERE = {
    "Builds": "setpoint.config.typed",
    "Component": "setpoint.config.typed",
    "Foreign": "setpoint.config.foreign.section",
    "Partial": "setpoint.config.foreign.partial",
    "add_section": "setpoint.config.added",
    "allow_imports": "setpoint.config.foreign.allow",
    "building": "setpoint.config.building",
    "cautions_of": "setpoint.config.verify",
    "component": "setpoint.config.component",
    "compose": "setpoint.config.compose",
    "differences": "setpoint.config.difference",
    "fingerprint": "setpoint.config.fingerprint",
    "json_schema": "setpoint.config.json_schema.document",
    "load": "setpoint.cli.own",
    "partial": "setpoint.config.foreign.partial",
    "record_files": "setpoint.config.record",
    "run": "setpoint.cli.own",
    "verify": "setpoint.config.verify",
}
_OF_CONFIG = (
    "BUDGET", "IDENTITY", "RUNTIME", "ByteSize", "Caution", "Config", "ConfigError", "DType",
    "Duration", "Free", "ImportPath", "Invalid", "Length", "Period", "Problem", "Role", "Secret",
    "SetpointError", "check", "dead", "derive", "derived", "field", "is_set", "modifier", "preset",
    "ref", "resolve",
)  # fmt: skip
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
