"""Files of paths, folders, globs and URLs: discovery, formats, and bytes, decompressed."""

from __future__ import annotations

import glob
import io
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from setpoint.config import Problem, SetpointError
from setpoint.hub.fetch import is_url, open_file_system, protocol_problem, url_reason

if TYPE_CHECKING:
    from collections.abc import Callable

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


IN_MEMORY = "memory://setpoint/"
"""The folder of the data that `train(data=...)` was given; the digest of its content follows."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A file behind a URL."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(self.url.partition("?")[0]).name

    @property
    def suffix(self) -> str:
        """The suffix of `name`."""
        return PurePosixPath(self.name).suffix

    def open(self, mode: str = "rb") -> Any:
        """Open it; it is read as it is needed, in blocks."""
        system, path = open_file_system(self.url)
        return system.open(path, mode)

    def state(self) -> str:
        """What the service tells that changes with the content, as far as it does."""
        if self.url.startswith(IN_MEMORY):
            return self.url  # which holds the digest of the content
        system, path = open_file_system(self.url)
        known = system.info(path)
        return " ".join(f"{name}={known[name]}" for name in _STATES if known.get(name) is not None)


_STATES = ("size", "ETag", "etag", "LastModified", "last_modified", "mtime", "updated", "created")


def find_remote(pattern: str, where: str) -> Iterator[tuple[str, Remote, bool]]:
    """The files of a URL: one file, a folder, or a glob.

    Yields:
        relative name, file, and whether a folder was listed.

    Raises:
        SetpointError: there is none, or the service does not answer.
    """
    try:
        found, base, listed = _listed(pattern)
    except Exception as error:  # each service has its own
        raise SetpointError(
            f"{where}: '{pattern}' cannot be listed: {url_reason(error)}.\n"
            "Valid: a URL that can be reached; credentials are those of the environment, as the "
            "package of the service reads them."
        ) from error
    if not found and pattern.startswith(IN_MEMORY):
        raise SetpointError(
            f"{where}: {pattern} is data that a Python program has passed to train(data=...), and "
            f"this process does not have it.\nValid: train(..., data=...) with the same data; or "
            f"the same rows in a file data.jsonl: --{where} data.jsonl --accept data"
        )
    if not found:
        raise SetpointError(
            f"{where}: '{pattern}' leads to no file.\n"
            "Valid: the URL of a file or a folder, or a glob; '**' crosses folders."
        )
    for url, path in found:
        relative = path[len(base) :].lstrip("/") if base else ""
        yield relative or PurePosixPath(path.partition("?")[0]).name, Remote(url), listed


def _listed(pattern: str) -> tuple[list[tuple[str, str]], str, bool]:
    """URLs and paths of the files, the folder that names are relative to, whether it is listed."""
    system, path = open_file_system(pattern)

    def urls(paths: list[str]) -> list[tuple[str, str]]:
        return [(str(system.unstrip_protocol(each)), each) for each in sorted(paths)]

    # A question mark and brackets are usual in URLs of the web, and no wildcards there.
    magic = "*" if pattern.startswith("http") else "*?["
    if any(sign in path for sign in magic):
        found = [each for each in system.glob(path) if not system.isdir(each)]
        first = min(path.index(sign) for sign in magic if sign in path)
        return urls(found), path[:first].rpartition("/")[0], False
    # On the web a folder is what ends in a slash: a page of links.
    folder = path.endswith("/") if pattern.startswith("http") else system.isdir(path)
    if not folder and system.exists(path):
        return urls([path]), "", False
    if folder:
        base = path.rstrip("/")
        found = [each for each in system.find(path) if "/." not in each[len(base) :]]
        return urls(found), base, True
    if pattern.startswith("http"):
        # There `exists` is false of a server that does not answer or refuses, too: ask for why.
        with suppress(FileNotFoundError):
            system.cat_file(path, 0, 1)
    return [], "", False


HERE = "here"  # stands for the path of a source that does not know its own
SKIPPED = 1 << 20  # bytes that are skipped at a time
NEARBY = 5  # entries of a folder that a message names
EXTRA = "'setpoint[data]'"

File = Path | Remote


@dataclass(frozen=True, slots=True)
class Found:
    """What paths lead to.

    Arguments:
        files: by document name, in the order of the paths; those of one path sorted.
        errors: by the dotted path of the field that is wrong.
    """

    files: dict[str, File]
    errors: dict[str, SetpointError]

    def checked(self) -> dict[str, File]:
        """The files.

        Raises:
            SetpointError: the first thing that is wrong.
        """
        for error in self.errors.values():
            raise error
        return self.files


def find_files(
    paths: Sequence[str] | Mapping[int, str],
    *,
    name: str,
    field: str,
    wanted: Callable[[File], bool] | None = None,
    remote: bool = True,
) -> Found:
    """Find the files of paths, folders and globs; nothing is opened.

    A file is named by its path relative to the folder, or to the part of the glob before the first
    wildcard, so names, and with them the split, do not depend on where the data is mounted. A file
    that is matched twice counts once.

    Arguments:
        paths: with their numbers where they are not all of the field's.
        name: the source's, which the names begin with.
        field: dotted path of `paths`, for messages.
        wanted: which files of a folder are taken; None: all but hidden ones.
        remote: whether other machines are asked; where not, their paths are only looked at.
    """
    errors: dict[str, SetpointError] = {}
    if not paths:
        errors[field] = SetpointError(
            f"{field}: [] names no file.\n"
            "Valid: at least one path or glob, such as 'notes.txt' or 'corpus/**/*.md'."
        )
    found: dict[str, File] = {}
    for index, pattern in paths.items() if isinstance(paths, Mapping) else enumerate(paths):
        where = f"{field}.{index}"
        try:
            expanded = _expand(pattern, where, wanted, remote)
        except SetpointError as error:
            errors[where] = error
            continue
        except OSError as error:  # only the working directory is asked for in ways that raise
            errors[where] = SetpointError(
                f"{where}: '{pattern}' starts at the working directory, which cannot be read: "
                f"{error.strerror}.\nValid: an absolute path or glob."
            )
            continue
        for relative, path in sorted(expanded, key=lambda each: each[0]):
            document = f"{name}/{relative}"
            if found.setdefault(document, path) != path:
                errors.setdefault(
                    field,
                    SetpointError(
                        f"{field}: {found[document]} and {path} would both be the document "
                        f"'{document}'.\n"
                        "Valid: a glob above both folders, or two sources with their own name."
                    ),
                )
    # One file reached through two patterns has two names: the first in order is kept.
    unique: dict[File, str] = {}
    for document, path in found.items():
        unique.setdefault(path, document)
    return Found({document: path for path, document in unique.items()}, errors)


def _expand(
    pattern: str, where: str, wanted: Callable[[File], bool] | None, remote: bool
) -> list[tuple[str, File]]:
    """Turn one path, folder, glob or URL into pairs of relative name and file."""
    if is_url(pattern):
        problem = protocol_problem(pattern, "data")
        if problem:
            raise SetpointError(f"{where}: {problem}")
        if not remote:
            return []
        return [
            (relative, file)
            for relative, file, listed in find_remote(pattern, where)
            if not listed or wanted is None or wanted(file)
        ]
    # os.path answers False where pathlib raises: a folder without permission, a name too long.
    literal = Path(os.path.expanduser(pattern))
    if os.path.isfile(literal):  # before globbing: a file may have brackets in its name
        return [(literal.name, Path(os.path.abspath(literal)))]
    if os.path.isdir(literal):
        return _in_folder(pattern, literal, where, wanted)
    if not glob.has_magic(pattern):
        raise SetpointError(
            f"{where}: '{pattern}' does not exist, or cannot be reached (relative paths start at "
            f"{Path.cwd()}).\nValid: an existing file or folder, or a glob. {_nearby(literal)}"
        )
    base = Path(os.path.abspath(_fixed_part(literal)))
    files = _globbed(str(literal))
    if not files:
        raise SetpointError(
            f"{where}: '{pattern}' matches no file (searched below {base}).\n"
            f"Valid: a glob that matches; '**' crosses folders. {_nearby(base / '*')}"
        )
    return [(path.relative_to(base).as_posix(), path) for path in files]


def _in_folder(
    pattern: str, folder: Path, where: str, wanted: Callable[[File], bool] | None
) -> list[tuple[str, File]]:
    base = Path(os.path.abspath(folder))
    files = _globbed(os.path.join(glob.escape(str(base)), "**", "*"))
    chosen = [path for path in files if wanted is None or wanted(path)]
    if not chosen:
        kind = "file that is not hidden" if not files else "file of the format"
        raise SetpointError(
            f"{where}: the folder '{pattern}' holds no {kind}.\n"
            f"Valid: a folder with files, or a glob. {_nearby(base / '*')}"
        )
    return [(path.relative_to(base).as_posix(), path) for path in chosen]


def _globbed(pattern: str) -> set[Path]:
    matches = glob.glob(pattern, recursive=True)
    return {path for path in (Path(os.path.abspath(m)) for m in matches) if os.path.isfile(path)}


def _fixed_part(pattern: Path) -> Path:
    """The folders before the first wildcard."""
    fixed = Path(pattern.anchor)
    for part in pattern.relative_to(pattern.anchor).parts[:-1]:
        if glob.has_magic(part):
            break
        fixed = fixed / part
    return fixed


def _nearby(path: Path) -> str:
    """What does exist beside a path that does not, for the end of a message."""
    folder = path.parent
    while not os.path.isdir(folder) and folder != folder.parent:
        folder = folder.parent
    try:
        entries = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    except OSError:
        return f"{folder} cannot be listed."
    if not entries:
        return f"{os.path.abspath(folder)} is empty."
    more = ", ..." if len(entries) > NEARBY else ""
    return f"{os.path.abspath(folder)} holds {', '.join(entries[:NEARBY])}{more}."


def problems_of(errors: dict[str, SetpointError]) -> Iterator[Problem]:
    """The errors of files that were looked for with `HERE` as the path of their section."""
    for path, error in errors.items():
        # The error of the data names the field first and what is valid last.
        message, _, valid = str(error).removeprefix(f"{path}: ").partition("\nValid: ")
        hint = f"Valid: {valid}" if valid else ""
        yield Problem(path.removeprefix(f"{HERE}."), message, hint=hint)


def size_of(files: dict[str, File]) -> int | None:
    """Bytes of all files; None where one lies elsewhere, or is compressed."""
    total = 0
    for file in files.values():
        if not isinstance(file, Path) or compression_of(str(file)):
            return None
        total += file.stat().st_size
    return total


def inputs_of(files: dict[str, File]) -> Iterator[str]:
    """A line for each file: its name, a tab, and what changes when its content does.

    That is size and modification time; of a URL what the service tells of it.
    """
    for name, file in files.items():
        if isinstance(file, Path):
            status = file.stat()
            state = f"{status.st_size} {status.st_mtime_ns}"
        else:
            state = file.state()
        yield f"{name}\t{state}"


@contextmanager
def opened(file: File, where: str, offset: int = 0) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed by its suffix.

    What goes wrong while it is read inside the `with` block is an error that names the file.

    Arguments:
        where: dotted path of the field, for messages.
        offset: bytes, decompressed, that are skipped.

    Raises:
        SetpointError: it cannot be opened or read, or is damaged.
    """
    with named_errors(file, where), file.open("rb") as raw:
        compression = compression_of(str(file))
        if not compression:
            if offset:
                raw.seek(offset)
            yield cast(BinaryIO, raw)
        else:
            with _decompressed(cast(BinaryIO, raw), compression, where) as stream:
                while offset > 0:  # not all decompressors can seek
                    skipped = len(stream.read(min(offset, SKIPPED)))
                    offset -= skipped or offset
                yield stream


def _decompressed(raw: BinaryIO, compression: str, where: str) -> BinaryIO:
    if compression == ".gz":
        import gzip

        return cast(BinaryIO, gzip.GzipFile(fileobj=raw, mode="rb"))
    if compression == ".bz2":
        import bz2

        return cast(BinaryIO, bz2.BZ2File(raw))
    if compression == ".xz":
        import lzma

        return cast(BinaryIO, lzma.LZMAFile(raw))
    arrow = need_arrow("files that end in .zst", where)
    return cast(BinaryIO, io.BufferedReader(arrow.input_stream(raw, compression="zstd")))


def need_arrow(what: str, where: str) -> Any:
    """The package pyarrow.

    Raises:
        SetpointError: it is not installed.
    """
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"{where}: {what} need the package {error.name!r}.\nValid: pip install {EXTRA}"
        ) from None
    return pyarrow


@contextmanager
def named_errors(file: File, where: str) -> Iterator[None]:
    """Say which file it is that cannot be read or is damaged.

    Raises:
        SetpointError: the error, with the file.
    """
    try:
        yield
    except SetpointError:
        raise
    except UnicodeDecodeError:
        raise  # a reader's own, who knows the row
    except PermissionError as error:
        raise SetpointError(
            f"{where}: cannot read {file}: {error.strerror}.\nValid: a file this user may read."
        ) from error
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise SetpointError(_damaged(file, where, error)) from error
    except Exception as error:
        if _is_of(error, "lzma") or not isinstance(file, Path):  # libraries have their own kinds
            raise SetpointError(_damaged(file, where, error)) from error
        raise


def _is_of(error: Exception, *modules: str) -> bool:
    return type(error).__module__.lstrip("_").partition(".")[0] in modules


def _damaged(file: File, where: str, error: Exception) -> str:
    text = (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip()
    reason = text.partition("\n")[0].rstrip(".")
    if isinstance(error, EOFError):
        reason = f"it is cut short ({reason})"
    return (
        f"{where}: cannot read {file}: {reason}.\n"
        "Valid: a whole file of the format that its suffix or `format` says."
    )
