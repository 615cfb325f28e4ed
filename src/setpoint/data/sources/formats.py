"""Files that hold records and would be trained on as plain text, braces and commas and all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from setpoint.config import Caution, SetpointError
from setpoint.data.sources.config import NOT_PLAIN, Text
from setpoint.data.sources.text import TextSource

START = 4096  # bytes that are looked at

JSON_LINES, CSV, PARQUET = "JSON Lines", "a table (CSV or TSV)", "Parquet"
SUFFIXES = {
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".csv": CSV,
    ".tsv": CSV,
    ".parquet": PARQUET,
}
INSTEAD = {
    JSON_LINES: "its braces and keys are trained on as they stand",
    CSV: "its separators, quotes and other columns are trained on as they stand",
    PARQUET: "it is no text, and is refused when it is read",
}


def record_files(source: Text) -> Iterator[Caution]:
    """Look for files that hold records, by their names and by the start of the first one."""
    try:
        files = list(TextSource(source).files().values())
    except (OSError, SetpointError):
        return  # a check of its own says why
    found: dict[str, list[Path]] = {}
    for path in files:
        kind = SUFFIXES.get(path.suffix.lower())
        if kind is None and path is files[0]:
            kind = _kind_by_content(path)
        if kind is not None:
            found.setdefault(kind, []).append(path)
    for kind, paths in found.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield Caution(
            NOT_PLAIN,
            "paths",
            f"{paths[0].name}{more} holds {kind}: {INSTEAD[kind]}",
            hint="Write the texts alone to files, with a separator between documents, or write a "
            "source of your own that yields them (docs/extending-training.md has one for JSON "
            "Lines).",
        )


def _kind_by_content(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            start = file.read(START)
    except OSError:
        return None
    if start.startswith(b"PAR1"):
        return PARQUET
    line, end, _ = start.partition(b"\n")
    if not end or not line.lstrip().startswith(b"{"):
        return None
    try:
        return JSON_LINES if isinstance(json.loads(line), dict) else None
    except ValueError:
        return None
