"""The files of a source of texts: which there are, of which format, and what is wrong with them."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from setpoint.config import Caution, Problem, SetpointError
from setpoint.data.sources.config import NOT_PLAIN, Conversations, Text
from setpoint.data.sources.files import (
    EXTRA,
    HERE,
    File,
    Found,
    find_files,
    opened,
    problems_of,
    size_of,
)
from setpoint.data.sources.records import UTF_16_BE, UTF_16_LE, not_utf8, read_rows, value_at
from setpoint.data.sources.suffixes import (
    ARROW,
    CSV,
    JSONL,
    PARQUET,
    SUFFIXES,
    TEXT,
    compression_of,
    format_of,
    suffix_of,
)
from setpoint.hub.urls import is_url

START = 4096  # bytes that are looked at
MOST_FILES = 64  # whose beginnings are looked at


def text_files(config: Text, field: str, *, remote: bool = True) -> Found:
    """The files of a source, and everything that is wrong with its paths at once.

    Arguments:
        field: dotted path of `paths`, for messages.
        remote: whether other machines are asked for theirs.
    """
    wanted = None if config.format is None else (lambda file: format_of(str(file)) == config.format)
    found = find_files(config.paths, name=config.name, field=field, wanted=wanted, remote=remote)
    mixed = "" if config.format or found.errors else _mixed(config, found)
    if mixed:
        found.errors[field] = SetpointError(f"{field}: {mixed}")
    return found


def _mixed(config: Text, found: Found) -> str:
    """Whether a folder or glob leads to both texts and records, which is hardly meant."""
    named = {os.path.abspath(os.path.expanduser(path)) for path in config.paths}
    by_format: dict[str, File] = {}
    for file in found.files.values():
        if str(file) not in named:
            by_format.setdefault(format_of(str(file)), file)
    others = [kind for kind in by_format if kind != TEXT]
    if not others or TEXT not in by_format:
        return ""
    kind, records = others[0], by_format[others[0]]
    return (
        f"{by_format[TEXT]} is text by its suffix, and {records} is {kind}.\n"
        f"Valid: a glob that matches one of them, such as '*{records.suffix}'; format = "
        f"'{kind}' or 'text', with which only files of that format are taken from a folder; "
        "or a source for each."
    )


def field_is_dead(config: Text) -> str | None:
    """Say why there are no fields."""
    return "the files are plain text" if _reads_only(config, TEXT) else None


def separator_is_dead(config: Text) -> str | None:
    """Say why nothing is divided."""
    return "each row is a document" if _reads_only(config, JSONL, CSV, PARQUET, ARROW) else None


def _reads_only(config: Text, *formats: str) -> bool:
    """Whether all files are of these formats, as far as the paths alone say it."""
    if config.format is not None:
        return config.format in formats
    # A path with no suffix, or an unknown one, may be a folder.
    known = {**SUFFIXES, ".txt": TEXT, ".md": TEXT}
    return {known.get(suffix_of(path)) for path in config.paths} <= {*formats}


def file_problems(config: Text) -> Iterator[Problem]:
    """Find paths that lead to no files, and files that need a package which is not there."""
    found = text_files(config, f"{HERE}.paths", remote=False)
    yield from problems_of(found.errors)

    def format_in(file: File) -> str:
        return config.format or format_of(str(file))

    yield from _packages(found, format_in)
    yield from _unreadable(found.files, format_in, config.field)
    # What the rules on dead fields cannot see: the files of a folder.
    inside = {config.format or format_of(str(file)) for file in found.files.values()}
    if any(map(is_url, config.paths)) or found.errors or not inside:
        return
    if inside == {TEXT} and config.field != "text":
        hint = "Remove it, or say `format` where the files hold records."
        yield Problem("field", "has no effect: the files are plain text", hint=hint)
    if TEXT not in inside and config.separator is not None:
        yield Problem("separator", "has no effect: each row is a document", hint="Remove it.")


def conversation_files(config: Conversations, field: str, *, remote: bool = True) -> Found:
    """The files of a source of conversations; see `text_files`."""
    return find_files(config.paths, name=config.name, field=field, remote=remote)


def record_format(file: File) -> str:
    """The format of a file that holds records: JSON Lines where its suffix says nothing."""
    kind = format_of(str(file))
    return JSONL if kind == TEXT else kind


def conversation_problems(config: Conversations) -> Iterator[Problem]:
    """Find paths that lead to no files, and files that need a package which is not there."""
    found = conversation_files(config, f"{HERE}.paths", remote=False)
    yield from problems_of(found.errors)
    yield from _packages(found, record_format)
    yield from _unreadable(found.files, record_format, None)


def _unreadable(
    files: dict[str, File], format_in: Callable[[File], str], field: str | None
) -> Iterator[Problem]:
    """Find files whose beginning cannot be read: of the first row, or of a text its encoding.

    Arguments:
        field: that the rows need; None: not known.
    """
    local = ((name, file) for name, file in files.items() if isinstance(file, Path))
    for name, file in islice(local, MOST_FILES):
        kind = format_in(file)
        if kind in (CSV, PARQUET, ARROW) and importlib.util.find_spec("pyarrow") is None:
            continue  # which is a problem of its own
        try:
            if kind != TEXT:
                columns = None if field is None else (field,)
                row = next(read_rows(name, file, kind, where=HERE, columns=columns))
                if field is not None:
                    value_at(row, field, f"{HERE}.field")
                continue
            with opened(file, f"{HERE}.paths") as stream:
                start = stream.read(2)
            if start in (UTF_16_LE, UTF_16_BE):
                raise not_utf8(f"{HERE}.paths", str(file), start, 0, "invalid start byte")
        except SetpointError as error:
            yield from problems_of({str(error).partition(": ")[0]: error})


def _packages(found: Found, format_in: Callable[[File], str]) -> Iterator[Problem]:
    for file in found.files.values():
        kind = format_in(file)
        if kind in (TEXT, JSONL) and compression_of(str(file)) != ".zst":
            continue
        if importlib.util.find_spec("pyarrow") is None:
            message, hint = f"{file} needs the package 'pyarrow'", f"pip install {EXTRA}"
            yield Problem("paths", message, hint=hint)
            return


def text_count(config: Text) -> int | None:
    """Count the documents of files of text that nothing divides; None where that is not known."""
    found = text_files(config, f"{HERE}.paths", remote=False)
    texts = all((config.format or format_of(str(file))) == TEXT for file in found.files.values())
    if config.separator or found.errors or not texts or any(map(is_url, config.paths)):
        return None
    files = (file for file in found.files.values() if isinstance(file, Path))
    return sum(file.stat().st_size > 0 for file in files)


def most_tokens(config: Text) -> int | None:
    """Bytes of the files, each at most a token; None where they do not say it or are not found."""
    found = text_files(config, f"{HERE}.paths", remote=False)
    inside = {config.format or format_of(str(file)) for file in found.files.values()}
    if found.errors or inside & {PARQUET, ARROW} or any(map(is_url, config.paths)):
        return None
    try:
        return size_of(found.files)
    except OSError:
        return None


def record_files(source: Text) -> Iterator[Caution]:
    """Look for records at the start of the first file that is taken for text by its suffix."""
    if source.format is not None:
        return
    files = text_files(source, f"{HERE}.paths", remote=False).files.values()
    texts = (f for f in files if isinstance(f, Path) and format_of(str(f)) == TEXT)
    path = next(texts, None)
    kind = path and _kind_by_content(path)
    if path and kind:
        name, instead = {
            JSONL: ("JSON Lines", "its braces and keys are trained on as they stand"),
            PARQUET: ("Parquet", "it is no text, and is refused when it is read"),
        }[kind]
        yield Caution(
            NOT_PLAIN,
            "paths",
            f"{path.name} holds {name}: {instead}",
            hint=f"Set format = '{kind}', and field to the one that holds the text; format = "
            f"'text' if it is meant so.",
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
        return JSONL if isinstance(json.loads(line), dict) else None
    except ValueError:
        return None
