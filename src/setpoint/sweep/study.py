"""The trials of a search: kept by Optuna in the folder of the sweep, under a name of their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.config import SetpointError, to_plain
from setpoint.sweep_space.points import ResolvedPoint
from setpoint.sweep_space.setting import Point
from setpoint.train.config import Job

from .metrics import MetricPath
from .proposals import Axes, corner

if TYPE_CHECKING:
    from optuna import Study

    from .config import Search

STORAGE = "search.db"
"""The SQLite file in the folder of the sweep."""

Make = Callable[[Point], ResolvedPoint[Job]]


def open_study(spec: Search, axes: Axes, make: Make, folder: Path) -> Study:
    """Open the trials of a search, or begin them.

    Raises:
        SetpointError: if Optuna is not installed, or its storage cannot be read.
    """
    optuna = import_optuna()
    path = (folder / STORAGE).resolve()
    name = identity(spec, axes, make)
    try:
        return optuna.create_study(
            storage=f"sqlite:///{path}",
            study_name=name,
            direction=spec.direction,
            load_if_exists=True,
        )
    except Exception as error:  # SQLAlchemy and SQLite have errors of their own
        raise _unreadable(path, error) from error


def trials_before(spec: Search, axes: Axes, make: Make, folder: Path) -> int:
    """How many trials a search has already; nothing is written.

    Raises:
        SetpointError: if there is a storage, and Optuna is not installed or cannot read it.
    """
    path = (folder / STORAGE).resolve()
    if not path.exists():
        return 0
    optuna = import_optuna()
    name = identity(spec, axes, make)
    try:
        known = optuna.get_all_study_summaries(f"sqlite:///{path}")
    except Exception as error:  # SQLAlchemy and SQLite have errors of their own
        raise _unreadable(path, error) from error
    return sum(study.n_trials for study in known if study.study_name == name)


def identity(spec: Search, axes: Axes, make: Make) -> str:
    """A name that only a search with comparable trials shares."""
    base = make(corner(axes))
    facts = {
        "axes": {".".join(path): to_plain(axis) for path, axis in axes.items()},
        "objective": list(MetricPath.parse(spec.objective)),
        "direction": spec.direction,
        "base": base.fingerprint,
        "duration": to_plain(base.config)["duration"],
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return f"search-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


_INSTALL = "a search needs the package {!r}: pip install 'setpoint[search]'"


def optuna_missing() -> str:
    """What is missing for a search; nothing is imported.

    Returns:
        what to install; the empty text where Optuna is installed.
    """
    from importlib.util import find_spec

    return "" if find_spec("optuna") else _INSTALL.format("optuna")


def import_optuna() -> Any:
    """The package that proposes.

    Raises:
        SetpointError: if it is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise SetpointError(_INSTALL.format(error.name)) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _unreadable(path: Path, error: Exception) -> SetpointError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return SetpointError(f"{path}: the trials cannot be read: {reason}")
