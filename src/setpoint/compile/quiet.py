"""What PyTorch's compiler warns of and Setpoint tells in one line of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

LOGGERS = tuple(f"torch._dynamo.{name}" for name in ("convert_frame", "variables.tensor"))
BEGINNINGS = ("torch._dynamo hit config.", "Graph break")
"""Of the limit of recompilation and of what ends a graph, both of which `Watch` finds."""


def is_told(record: logging.LogRecord) -> bool:
    """Say whether a line of PyTorch's log repeats what `Watch` tells."""
    return record.levelno == logging.WARNING and str(record.msg).startswith(BEGINNINGS)


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Keep PyTorch's own warnings about graphs and limits, 5 to 20 lines each, from the terminal.

    Whoever sets TORCH_LOGS gets what is asked for.

    Returns:
        a context, after which the loggers are as before.
    """
    if os.environ.get("TORCH_LOGS"):
        yield
        return

    def passes(record: logging.LogRecord) -> bool:
        return not is_told(record)

    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(passes)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(passes)
