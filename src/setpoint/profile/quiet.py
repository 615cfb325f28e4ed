"""Keeps what the profiler's own library prints away from people."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

CHATTER = b"USDT:"
"""How the lines begin that PyTorch's profiler prints whenever it starts and stops."""


@contextmanager
def without_chatter() -> Iterator[None]:
    """Drop the profiler's lines from standard error; all others come when the block ends.

    The library writes past Python, and no setting stops it.
    """
    try:
        kept = os.dup(2)
    except OSError:  # standard error is closed, so nothing can be printed
        yield
        return
    with tempfile.TemporaryFile() as lines:
        sys.stderr.flush()
        os.dup2(lines.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            lines.seek(0)
            for line in lines:
                if not line.startswith(CHATTER):
                    os.write(2, line)
