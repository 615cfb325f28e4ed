"""Text files of the user, given as paths and globs."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from setpoint.config import Problem, SetpointError
from setpoint.data.document import Document
from setpoint.data.sources.config import Text

HERE = "here"  # stands for the path of a source that does not know its own
NEARBY = 5  # entries of a folder that a message names


class TextSource:
    """Documents from UTF-8 files.

    A document is named by its file's path relative to the part of the pattern before the first
    wildcard, so the names, and with them the split, do not depend on where the data is mounted.

    Arguments:
        where: the path of `config` in the job, for messages.
    """

    def __init__(self, config: Text, *, where: str = "data.sources") -> None:
        self.config = config
        self.where = where

    def files(self) -> dict[str, Path]:
        """The files to be read; nothing is opened.

        Returns:
            document name -> absolute path, sorted by name. A file matched twice counts once.

        Raises:
            SetpointError: no paths are given, a path is missing or not a file, a glob matches
                nothing, or two files would get one name.
        """
        found, errors = self.search()
        for error in errors.values():
            raise error
        return found

    def search(self) -> tuple[dict[str, Path], dict[str, SetpointError]]:
        """The files to be read, and everything that is wrong with the paths at once.

        Returns:
            the files, as `files` gives them; and by the dotted path of the field, the error that
            `files` would raise for it.
        """
        field = f"{self.where}.paths"
        errors: dict[str, SetpointError] = {}
        if not self.config.paths:
            errors[field] = SetpointError(
                f"{field}: [] names no file.\n"
                "Valid: at least one path or glob, such as 'notes.txt' or 'corpus/**/*.md'."
            )
        found: dict[str, Path] = {}
        for index, pattern in enumerate(self.config.paths):
            try:
                expanded = self._expand(pattern, f"{field}.{index}")
            except SetpointError as error:
                errors[f"{field}.{index}"] = error
                continue
            except OSError as error:  # only the working directory is asked for in ways that raise
                errors[f"{field}.{index}"] = SetpointError(
                    f"{field}.{index}: '{pattern}' starts at the working directory, which cannot "
                    f"be read: {error.strerror}.\n"
                    "Valid: an absolute path or glob."
                )
                continue
            for relative, path in expanded:
                name = f"{self.config.name}/{relative}"
                if found.setdefault(name, path) != path:
                    errors.setdefault(
                        field,
                        SetpointError(
                            f"{field}: {found[name]} and {path} would both be the document "
                            f"'{name}'.\n"
                            "Valid: a glob above both folders, or two text sources with their own "
                            "name."
                        ),
                    )
        # One file reached through two patterns has two names: the first in order is kept.
        unique: dict[Path, str] = {}
        for name in sorted(found):
            unique.setdefault(found[name], name)
        return {name: path for path, name in unique.items()}, errors

    def documents(self) -> Iterator[Document]:
        """Read and check the files.

        Returns:
            an iterator of documents, sorted by file; files that divide into several documents
            yield `<name>#<number>`.

        Raises:
            SetpointError: see `files`; or a file cannot be read, or is not UTF-8 (with the
                offset of the first bad byte); or the separator occurs in none.
        """
        separator, divided = self.config.separator, False
        files = self.files()
        for name, path in files.items():
            data = self._read(path)
            if separator is None:
                yield Document(name, data)
                continue
            pieces = data.split(separator.encode("utf-8"))
            divided = divided or len(pieces) > 1
            for number, piece in enumerate(pieces):
                yield Document(f"{name}#{number:06d}", piece)
        if separator is not None and not divided:
            raise SetpointError(self._never_found(separator, len(files)))

    def _never_found(self, separator: str, count: int) -> str:
        which = "the file" if count == 1 else f"any of the {count} files"
        text = f"{self.where}.separator: {separator!r} does not occur in {which}"
        if "\\" in separator:
            text += (
                '; a backslash is a character like others here: write "\\n" in double quotes for '
                "a line break in TOML and YAML, where single quotes take it literally"
            )
        return f"{text}.\nValid: text that stands between documents, or null."

    def _expand(self, pattern: str, where: str) -> list[tuple[str, Path]]:
        """Turn one path or glob into (relative name, absolute path)."""
        # os.path answers False where pathlib raises: a folder without permission, a name too long.
        literal = Path(os.path.expanduser(pattern))
        if os.path.isfile(literal):  # before globbing: a file may have brackets in its name
            return [(literal.name, Path(os.path.abspath(literal)))]
        if os.path.isdir(literal):
            raise SetpointError(
                f"{where}: '{pattern}' is a folder.\n"
                f"Valid: a file or a glob, such as '{literal.as_posix()}/**/*.txt'."
            )
        if not glob.has_magic(pattern):
            raise SetpointError(
                f"{where}: '{pattern}' does not exist, or cannot be reached (relative paths start "
                f"at {Path.cwd()}).\n"
                f"Valid: an existing file, or a glob. {_nearby(literal)}"
            )
        base = Path(os.path.abspath(_fixed_part(literal)))
        matches = glob.glob(str(literal), recursive=True)
        files = {
            path for path in (Path(os.path.abspath(m)) for m in matches) if os.path.isfile(path)
        }
        if not files:
            raise SetpointError(
                f"{where}: '{pattern}' matches no file (searched below {base}).\n"
                f"Valid: a glob that matches; '**' crosses folders. {_nearby(base / '*')}"
            )
        return [(path.relative_to(base).as_posix(), path) for path in files]

    def _read(self, path: Path) -> bytes:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SetpointError(
                f"{self.where}.paths: cannot read {path}: {error.strerror}.\n"
                "Valid: a file this user may read."
            ) from error
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SetpointError(
                f"{self.where}.paths: {path} is not UTF-8: byte 0x{data[error.start]:02x} at "
                f"offset {error.start} ({error.reason}).\n"
                "Valid: UTF-8 text; convert it (iconv -f LATIN1 -t UTF-8) or narrow the glob."
            ) from error
        return data


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


def file_problems(config: Text) -> Iterator[Problem]:
    """Find paths that lead to no files."""
    _, errors = TextSource(config, where=HERE).search()
    for path, error in errors.items():
        # The error of the data names the field first and what is valid last.
        message, _, valid = str(error).removeprefix(f"{path}: ").partition("\nValid: ")
        hint = f"Valid: {valid}" if valid else ""
        yield Problem(path.removeprefix(f"{HERE}."), message, hint=hint)
