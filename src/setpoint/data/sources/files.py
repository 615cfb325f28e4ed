"""Files at paths, folders, globs and URLs: discovery, formats, and decompressed content."""

from __future__ import annotations

import glob
import io
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from setpoint.config import MissingPathError, Problem, SetpointError, nearest
from setpoint.hub.fetch import is_url, open_file_system, protocol_problem, url_reason

TEXT, JSONL, CSV, PARQUET, ARROW = "text", "jsonl", "csv", "parquet", "arrow"
SUFFIXES = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), JSONL),
    **dict.fromkeys((".csv", ".tsv"), CSV),
    ".parquet": PARQUET,
    **dict.fromkeys((".arrow", ".feather"), ARROW),
}
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "pyarrow"}
"""Module that decompresses files, by suffix."""
IN_MEMORY = "memory://setpoint/"
"""Folder of the data of `train(data=...)`, followed by the digest of its content."""
HERE = "here"  # placeholder for the path of a source
SKIPPED = 1 << 20  # bytes that are skipped at a time
NEARBY = 5  # entries of a folder that a message lists
EXTRA = "'setpoint[data]'"
_STATES = ("size", "ETag", "etag", "LastModified", "last_modified", "mtime", "updated", "created")


def suffix_of(path: str) -> str:
    """Lower-case suffix of a path or URL, without a compression suffix: `.jsonl`."""
    name = PurePosixPath(path.partition("?")[0] if is_url(path) else path)
    return PurePosixPath(name.stem if compression_of(path) else name).suffix.lower()


def compression_of(path: str) -> str:
    """Suffix of a compressed file; empty for others."""
    suffix = PurePosixPath(path.partition("?")[0] if is_url(path) else path).suffix.lower()
    return suffix if suffix in COMPRESSED else ""


def format_of(path: str) -> str:
    """Format of a file, from its suffix; "text" if unknown."""
    return SUFFIXES.get(suffix_of(path), TEXT)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at a URL, read in blocks on demand."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.url.partition("?")[0]).name

    @property
    def suffix(self) -> str:
        """The suffix of `name`."""
        return PurePosixPath(self.name).suffix

    def open(self, mode: str = "rb") -> Any:
        """Open the file with fsspec."""
        system, path = open_file_system(self.url)
        return system.open(path, mode)

    def state(self) -> str:
        """Size, tag and times reported by the service, which change with the content."""
        if self.url.startswith(IN_MEMORY):
            return self.url  # which holds the digest of the content
        system, path = open_file_system(self.url)
        known = system.info(path)
        return " ".join(f"{name}={known[name]}" for name in _STATES if known.get(name) is not None)


File = Path | RemoteFile


@dataclass(frozen=True, slots=True)
class FileList:
    """Files found at paths.

    Arguments:
        files: files by document name, in the order of the paths, sorted within each path.
        errors: errors by the dotted path of the invalid field.
    """

    files: dict[str, File]
    errors: dict[str, SetpointError]

    def checked(self) -> dict[str, File]:
        """The files.

        Raises:
            SetpointError: the first error.
        """
        for error in self.errors.values():
            raise error
        return self.files


def find_files(
    paths: Sequence[str] | Mapping[int, str],
    *,
    name: str,
    field: str,
    accept: Callable[[File], bool] | None = None,
    remote: bool = True,
) -> FileList:
    """Find the files of paths, folders and globs, without opening them.

    A file is named by its path relative to the folder, or to the part of the glob before the first
    wildcard, so that names, and thus the split, do not depend on the mount point. A file that is
    matched twice counts once.

    Arguments:
        paths: paths, or a mapping from their indices in the field.
        name: name of the source, the prefix of document names.
        field: dotted path of `paths`, for messages.
        accept: predicate for files in a folder; None: all but hidden files.
        remote: whether to list URLs; if False, only their syntax is checked.
    """
    errors: dict[str, SetpointError] = {}
    if not paths:
        errors[field] = SetpointError(
            f"{field}: [] contains no paths.\n"
            "Valid: at least one path or glob, such as 'notes.txt' or 'corpus/**/*.md'."
        )
    files: dict[str, File] = {}
    for index, pattern in paths.items() if isinstance(paths, Mapping) else enumerate(paths):
        where = f"{field}.{index}"
        try:
            expanded = (_expand_url if is_url(pattern) else _expand)(pattern, where, accept, remote)
        except SetpointError as error:
            errors[where] = error
            continue
        except OSError as error:  # only the working directory is asked for in ways that raise
            errors[where] = SetpointError(
                f"{where}: '{pattern}' is relative to the working directory, which cannot be read: "
                f"{error.strerror}.\nValid: an absolute path or glob."
            )
            continue
        for relative, file in sorted(expanded, key=lambda pair: pair[0]):
            document = f"{name}/{relative}"
            if files.setdefault(document, file) != file and field not in errors:
                errors[field] = SetpointError(
                    f"{field}: {files[document]} and {file} would both be the document "
                    f"'{document}'.\n"
                    "Valid: a glob above both folders, or two sources with their own name."
                )
    # One file reached through two patterns has two names: the first in order is kept.
    unique: dict[File, str] = {}
    for document, file in files.items():
        unique.setdefault(file, document)
    return FileList({document: file for file, document in unique.items()}, errors)


def _expand(
    pattern: str, where: str, accept: Callable[[File], bool] | None, _: bool
) -> list[tuple[str, File]]:
    """Expand a path, folder or glob into pairs of relative name and file."""
    # os.path answers False where pathlib raises: a folder without permission, a name too long.
    literal = Path(os.path.expanduser(pattern))
    if os.path.isfile(literal):  # before globbing: a file may have brackets in its name
        return [(literal.name, Path(os.path.abspath(literal)))]
    if folder := os.path.isdir(literal):
        base = Path(os.path.abspath(literal))
        files = _globbed(os.path.join(glob.escape(str(base)), "**", "*"))
        kind = "files of the format" if files else "files (hidden ones are skipped)"
        wrong = f"the folder '{pattern}' contains no {kind}", "a folder with files, or a glob"
    elif glob.has_magic(pattern):
        base = Path(literal.anchor)
        for part in literal.relative_to(literal.anchor).parts[:-1]:
            if glob.has_magic(part):
                break
            base /= part
        base = Path(os.path.abspath(base))
        files = _globbed(str(literal))
        wrong = (
            f"'{pattern}' matches no file (searched below {base})",
            "a glob that matches; '**' matches any number of folders",
        )
    else:
        raise MissingPathError(
            f"{where}: '{pattern}' does not exist, or cannot be reached (relative paths start at "
            f"{Path.cwd()}).\nValid: an existing file or folder, or a glob. {_nearby(literal)}"
        )
    chosen = [file for file in files if not folder or accept is None or accept(file)]
    if not chosen:
        kind = SetpointError if folder else MissingPathError
        raise kind(f"{where}: {wrong[0]}.\nValid: {wrong[1]}. {_nearby(base / '*')}")
    return [(file.relative_to(base).as_posix(), file) for file in chosen]


def _globbed(pattern: str) -> set[Path]:
    matches = glob.glob(pattern, recursive=True)
    return {path for path in (Path(os.path.abspath(m)) for m in matches) if os.path.isfile(path)}


def _nearby(path: Path) -> str:
    """Sentence about the entries of the nearest existing parent folder of a missing path."""
    folder = path.parent
    while not os.path.isdir(folder) and folder != folder.parent:
        folder = folder.parent
    try:
        entries = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    except OSError:
        return f"{folder} cannot be listed."
    if not entries:
        return f"{os.path.abspath(folder)} is empty."
    names = [entry.rstrip("/") for entry in entries]
    if folder == path.parent and (close := nearest(path.name, names, 1, 0.7)):
        return f"Did you mean {folder / close[0]}?"
    more = f" and {len(entries) - NEARBY} more" if len(entries) > NEARBY else ""
    return f"{os.path.abspath(folder)} contains {', '.join(entries[:NEARBY])}{more}."


def _expand_url(
    pattern: str, where: str, accept: Callable[[File], bool] | None, remote: bool
) -> list[tuple[str, File]]:
    """Expand the URL of a file, folder or glob into pairs of relative name and file."""
    if problem := protocol_problem(pattern, "data"):
        raise SetpointError(f"{where}: {problem}")
    if not remote:
        return []
    try:
        paths, base, is_folder = _list_url(pattern)
    except Exception as error:  # each service has its own
        raise SetpointError(
            f"{where}: '{pattern}' cannot be listed: {url_reason(error)}.\n"
            "Valid: a URL that can be reached; credentials come from the environment, as the "
            "package of the service reads them."
        ) from error
    if not paths and pattern.startswith(IN_MEMORY):
        raise SetpointError(
            f"{where}: {pattern} is data that a Python program has passed to train(data=...), and "
            f"this process does not have it.\nValid: train(..., data=...) with the same data; or "
            f"the same rows in a file data.jsonl: --{where} data.jsonl --accept data"
        )
    if not paths:
        raise SetpointError(
            f"{where}: '{pattern}' matches no file.\n"
            "Valid: the URL of a file or a folder, or a glob; '**' matches any number of folders."
        )
    system, _ = open_file_system(pattern)
    files = ((path, RemoteFile(str(system.unstrip_protocol(path)))) for path in paths)
    return [
        (path[len(base) :].lstrip("/") if base else file.name, file)
        for path, file in files
        if not is_folder or accept is None or accept(file)
    ]


def _list_url(pattern: str) -> tuple[list[str], str, bool]:
    """Paths of the files, the folder to which names are relative, and whether it was listed."""
    system, path = open_file_system(pattern)
    web = pattern.startswith("http")
    # A question mark and brackets are usual in URLs of the web, and no wildcards there.
    magic = [path.index(char) for char in ("*" if web else "*?[") if char in path]
    if magic:
        files = [file for file in system.glob(path) if not system.isdir(file)]
        return files, path[: min(magic)].rpartition("/")[0], False
    # On the web a folder is what ends in a slash: a page of links.
    if path.endswith("/") if web else system.isdir(path):
        base = path.rstrip("/")
        return [file for file in system.find(path) if "/." not in file[len(base) :]], base, True
    if system.exists(path):
        return [path], "", False
    if web:
        # There `exists` is false of a server that does not answer or refuses, too: ask for why.
        with suppress(FileNotFoundError):
            system.cat_file(path, 0, 1)
    return [], "", False


def problems_of(errors: Mapping[str, SetpointError]) -> Iterator[Problem]:
    """Errors of `find_files` as problems, with `HERE` as the path of the section."""
    for path, error in errors.items():
        yield Problem.of(error, path.removeprefix(f"{HERE}."), path)


def size_of(files: Mapping[str, File]) -> int | None:
    """Bytes of all files; None if any is remote or compressed."""
    if any(not isinstance(file, Path) or compression_of(str(file)) for file in files.values()):
        return None
    return sum(file.stat().st_size for file in files.values() if isinstance(file, Path))


def inputs_of(files: Mapping[str, File]) -> Iterator[str]:
    """A line for each file: its name, a tab, and a state that changes with its content.

    The state is size and modification time, or for a URL, what the service reports.
    """
    for name, file in files.items():
        if isinstance(file, Path):
            status = file.stat()
            yield f"{name}\t{status.st_size} {status.st_mtime_ns}"
        else:
            yield f"{name}\t{file.state()}"


@contextmanager
def opened(file: File, where: str, offset: int = 0) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed by its suffix.

    Errors inside the `with` block name the file.

    Arguments:
        where: dotted path of the field, for messages.
        offset: decompressed bytes to skip.

    Raises:
        SetpointError: the file cannot be opened or read, or is damaged.
    """
    with named_errors(file, where), file.open("rb") as raw:
        compression = compression_of(str(file))
        if not compression:
            if offset:
                raw.seek(offset)
            yield cast(BinaryIO, raw)
            return
        if compression == ".zst":
            arrow = need_arrow("files that end in .zst", where)
            stream = io.BufferedReader(arrow.input_stream(raw, compression="zstd"))
        else:
            # Each has an `open` that takes a file in place of a name.
            stream = import_module(COMPRESSED[compression]).open(raw, "rb")
        with stream:
            while offset > 0:  # not all decompressors can seek
                skipped = len(stream.read(min(offset, SKIPPED)))
                offset -= skipped or offset
            yield cast(BinaryIO, stream)


def need_arrow(subject: str, where: str) -> Any:
    """Import pyarrow.

    Raises:
        SetpointError: pyarrow is not installed.
    """
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"{where}: {subject} need the package {error.name!r}.\nValid: pip install {EXTRA}"
        ) from None
    return pyarrow


@contextmanager
def named_errors(file: File, where: str) -> Iterator[None]:
    """Convert read errors to errors that name the file.

    Raises:
        SetpointError: the file cannot be read or is damaged.
    """
    try:
        yield
    except (SetpointError, UnicodeDecodeError):
        raise  # the latter is a reader's own, who knows the row
    except PermissionError as error:
        raise SetpointError(
            f"{where}: cannot read {file}: {error.strerror}.\nValid: a file that you have "
            f"permission to read."
        ) from error
    except Exception as error:
        # Libraries have errors of their own: that of lzma, and those of services.
        known = isinstance(error, (OSError, EOFError, zlib.error, ValueError))
        if not known and isinstance(file, Path) and type(error).__name__ != "LZMAError":
            raise
        text = (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip()
        reason = text.partition("\n")[0].rstrip(".")
        if isinstance(error, EOFError):
            reason = f"it is truncated ({reason})"
        raise SetpointError(
            f"{where}: cannot read {file}: {reason}.\n"
            "Valid: a complete file in the format given by its suffix or `format`."
        ) from error
