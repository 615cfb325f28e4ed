"""The training job: its root config, build order, loop and state.

`Job` is the configuration, and `train` trains one; both are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from setpoint.train.threads import prepare_threads

if TYPE_CHECKING:
    from setpoint.train.config import Job
    from setpoint.train.record.context import Outcome
    from setpoint.train.run import train

# Whatever loads torch for a job comes by here first, whether a command or a program.
prepare_threads()

__all__ = ["Job", "Outcome", "train"]

_WHERE = {"Job": "config", "Outcome": "record.context", "train": "run"}


def __getattr__(name: str) -> Any:
    # `train` needs torch, which takes a second.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"setpoint.train.{_WHERE[name]}"), name)
