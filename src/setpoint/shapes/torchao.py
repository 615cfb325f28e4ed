"""Imports of torchao, by Setpoint and by transformers, without log lines."""

from __future__ import annotations

import importlib
import logging
from typing import Any, Final

_LINES: Final = {
    # Kernel libraries for other machines, each of which it tries.
    "torchao": "Failed to load ",
    # Enums that torchao registers with torch, which already knows them.
    "torch.utils._pytree": "Calling register_constant() on Enum subclasses is deprecated",
}
"""Parts of log lines, by logger."""


class _Without(logging.Filter):
    """Filter that drops log records containing a text."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        return self.name not in record.getMessage()


_FILTERS: Final = {name: _Without(text) for name, text in _LINES.items()}


def quiet_torchao() -> None:
    """Suppress the log lines printed when torchao is imported."""
    for name, filter in _FILTERS.items():
        logging.getLogger(name).addFilter(filter)  # filters are added only once


def import_torchao(module: str) -> Any:
    """Import a module of torchao by its relative name."""
    quiet_torchao()
    return importlib.import_module(f"torchao.{module}")
