"""What the suffix of a file says about its content."""

from __future__ import annotations

from pathlib import PurePosixPath

TEXT, JSONL, CSV, PARQUET, ARROW = "text", "jsonl", "csv", "parquet", "arrow"
SUFFIXES = {
    ".jsonl": JSONL,
    ".ndjson": JSONL,
    ".json": JSONL,
    ".csv": CSV,
    ".tsv": CSV,
    ".parquet": PARQUET,
    ".arrow": ARROW,
    ".feather": ARROW,
}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def suffix_of(path: str) -> str:
    """The suffix of a path or URL in lower case, that of its compression left aside: `.jsonl`."""
    name = PurePosixPath(path.partition("?")[0] if "://" in path else path)
    if name.suffix.lower() in COMPRESSED:
        name = name.with_suffix("")
    return name.suffix.lower()


def compression_of(path: str) -> str:
    """The suffix of a compressed file; empty for others."""
    suffix = PurePosixPath(path.partition("?")[0] if "://" in path else path).suffix.lower()
    return suffix if suffix in COMPRESSED else ""


def format_of(path: str) -> str:
    """The format that the suffix of a file says; "text" for any other."""
    return SUFFIXES.get(suffix_of(path), TEXT)
