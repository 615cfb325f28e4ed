"""How much text sources hold, without reading it."""

from __future__ import annotations

from setpoint.config import SetpointError
from setpoint.data.sources.config import Random, SourceConfig, Stdlib, Text


def source_bytes(source: SourceConfig) -> int | None:
    """The size of a source.

    Returns:
        bytes; None for a source of the user's own, and for files that cannot be listed, of which
        their own check says why.
    """
    if isinstance(source, Random):
        return source.documents * source.length
    try:
        if isinstance(source, Text):
            from setpoint.data.sources.text import TextSource

            return sum(path.stat().st_size for path in TextSource(source).files().values())
        if isinstance(source, Stdlib):
            from setpoint.data.sources.stdlib import StdlibSource

            found = StdlibSource(source)
            return sum((found.root / path).stat().st_size for path in found.paths())
    except (OSError, SetpointError):
        return None
    return None
