"""Texts: files of plain text or of records, and the standard library's sources."""

from __future__ import annotations

import codecs
import hashlib
import importlib.util
import json
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath

from setpoint.config import Caution, Problem, SetpointError
from setpoint.data.document import Document, FileRecord, Place, Placed
from setpoint.data.sources.config import NOT_PLAIN, Conversations, Stdlib, Text
from setpoint.data.sources.files import (
    ARROW,
    CSV,
    EXTRA,
    HERE,
    JSONL,
    PARQUET,
    SUFFIXES,
    TEXT,
    File,
    Found,
    compression_of,
    find_files,
    format_of,
    inputs_of,
    opened,
    problems_of,
    size_of,
    suffix_of,
)
from setpoint.data.sources.records import UTF_16_BE, UTF_16_LE, Start, not_utf8, read_rows, value_at
from setpoint.data.sources.tokens import placed_documents
from setpoint.hub.fetch import is_url

BLOCK = 1 << 20  # bytes of a file that are read at a time where a separator divides it


class TextSource:
    """Documents from files of text or of records.

    Arguments:
        where: the path of `config` in the job, for messages.
    """

    def __init__(self, config: Text, *, where: str = "data.sources") -> None:
        self.config = config
        self.where = where
        self._parts: list[tuple[str, File]] = []

    def files(self) -> dict[str, File]:
        """The files to be read, by document name, sorted; nothing is opened.

        Raises:
            SetpointError: a path is missing, a glob matches nothing, two files would get one name,
                or a folder holds both text and records.
        """
        return text_files(self.config, f"{self.where}.paths").checked()

    def documents(self) -> Iterator[Document]:
        """Read and check the files.

        Yields:
            documents sorted by file; those of a file that holds several are `<name>#<number>`.

        Raises:
            SetpointError: see `files`; or a file cannot be read, is damaged, holds no rows, or is
                not UTF-8; a row has no such field, or one that is no text; or the separator occurs
                in no file.
        """
        divided, texts = False, 0
        for name, file in self.files().items():
            if self._format(file) != TEXT:
                yield from self._records(name, file)
                continue
            texts += 1
            if self.config.separator is None:
                yield Document(name, self._read(file))
                continue
            pieces = self._pieces(file, self.config.separator.encode())
            for number, (piece, _) in enumerate(pieces):
                divided = divided or number > 0
                yield Document(f"{name}#{number:06d}", piece)
        if self.config.separator is not None and texts and not divided:
            raise SetpointError(self._never_found(self.config.separator, texts))

    def inputs(self) -> Iterator[str]:
        """See `inputs_of`."""
        return inputs_of(self.files())

    def _format(self, file: File) -> str:
        return self.config.format or format_of(str(file))

    def _records(self, name: str, file: File) -> Iterator[Document]:
        return (document for document, _ in self._placed_records(name, file, {}))

    def _placed_records(self, name: str, file: File, place: Place) -> Iterator[Placed]:
        field, where = self.config.field, self.where
        start = Start(place.get("row", 0), place.get("offset", 0))
        rows = read_rows(name, file, self._format(file), where=where, columns=(field,), start=start)
        for row in rows:
            behind = partial(dict, row=row.number + 1, offset=row.behind)
            yield from placed_documents(
                row, field, f"{where}.field", self.config.shifted_labels, place, behind
            )
            place = behind()

    def parts(self) -> Sequence[FileRecord]:
        """The files, by their sizes; of URLs by what the service tells. See `StreamSource`.

        Raises:
            SetpointError: see `files`.
        """
        found: list[FileRecord] = []
        self._parts = list(self.files().items())
        for name, file in self._parts:
            local = isinstance(file, Path)
            size = file.stat().st_size if local else 0
            # Of a copy the time is another one, and the content the same.
            state = f"{size}" if local else file.state()
            found.append(FileRecord(name, size, hashlib.sha256(state.encode()).hexdigest()))
        return found

    def read(self, part: int, place: Place) -> Iterator[Placed]:
        """See `StreamSource`; Parquet and JSON Lines are found at once, others are read up to it.

        Raises:
            SetpointError: see `documents`.
        """
        name, file = self._parts[part]
        start = Start(place.get("row", 0), place.get("offset", 0))
        if self._format(file) != TEXT:
            yield from self._placed_records(name, file, place)
        elif self.config.separator is not None:
            pieces = self._pieces(file, self.config.separator.encode(), start.offset)
            for number, (piece, behind) in enumerate(pieces, start.row):
                document = Document(f"{name}#{number:06d}", piece)
                yield document, partial(dict, row=number + 1, offset=behind)
        elif not start.row:
            yield Document(name, self._read(file)), partial(dict, row=1)

    def _never_found(self, separator: str, count: int) -> str:
        which = "the file" if count == 1 else f"any of the {count} files"
        text = f"{self.where}.separator: {separator!r} does not occur in {which}"
        if "\\" in separator:
            text += (
                '; a backslash is a character like others here: write "\\n" in double quotes for '
                "a line break in TOML and YAML, where single quotes take it literally"
            )
        return f"{text}.\nValid: text that stands between documents, or null."

    def _read(self, file: File) -> bytes:
        where = f"{self.where}.paths"
        with opened(file, where) as stream:
            data = stream.read()
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise not_utf8(where, str(file), data, error.start, error.reason) from error
        return data

    def _pieces(self, file: File, separator: bytes, start: int = 0) -> Iterator[tuple[bytes, int]]:
        """What stands between separators, with the offset behind; the file is read in blocks.

        Arguments:
            start: offset of the first piece; -1: behind the last one.
        """
        if start < 0:
            return
        decoder = codecs.getincrementaldecoder("utf-8")()
        # The last bytes read, in which a separator may begin, and what lies before them in its
        # piece: each byte is searched once, however rare separators are.
        tail, before, offset = b"", [b""], start
        with opened(file, f"{self.where}.paths", start) as stream:
            while block := stream.read(BLOCK):
                self._decode(decoder, file, block, offset)
                offset += len(block)
                *pieces, last = (tail + block).split(separator)
                for piece in pieces:
                    whole = b"".join([*before, piece])
                    start += len(whole) + len(separator)
                    yield whole, start
                    before = []
                cut = max(len(last) - len(separator) + 1, 0)
                tail = last[cut:]
                before.append(last[:cut])
            self._decode(decoder, file, b"", offset)
        yield b"".join([*before, tail]), -1

    def _decode(
        self, decoder: codecs.IncrementalDecoder, file: File, block: bytes, offset: int
    ) -> None:
        before = len(decoder.getstate()[0])
        try:
            decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            where, data = f"{self.where}.paths", bytes(error.object)
            raise not_utf8(
                where, str(file), data, error.start, error.reason, offset - before
            ) from error


# Tests are left out because some Pythons ship without them, installed packages because they are
# not the standard library. Debian calls the latter dist-packages.
SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages"}
)


class StdlibSource:
    """Documents of the running Python's standard library, one for each `.py` file.

    Two calls in the same Python yield the same documents: the walk is sorted by relative path, and
    caches and installed packages are skipped. Files which are not UTF-8 are skipped too.

    Arguments:
        where: the path of `config` in the job, for messages.
        root: folder of the standard library; unset, that of the running Python. Inside a virtual
            environment this is the library of the Python it was made from.
    """

    def __init__(
        self, config: Stdlib, *, where: str = "data.sources", root: Path | None = None
    ) -> None:
        self.config = config
        self.where = where
        self.root = root or Path(sysconfig.get_path("stdlib"))

    def paths(self) -> list[str]:
        """The files to be read.

        Returns:
            paths relative to the library's folder, with forward slashes, sorted.

        Raises:
            SetpointError: the library has no `.py` files, or none match `include`.
        """
        found = sorted(self._python_files())
        if not found:
            raise SetpointError(
                f"{self.where}: type 'stdlib' finds no .py file below {self.root}: this Python "
                "keeps its library elsewhere (zipped, or compiled only).\n"
                "Valid: type 'text' with paths to text of your own, or type 'random'."
            )
        include = self.config.include
        chosen = [path for path in found if any(fnmatchcase(path, glob) for glob in include)]
        if not chosen:
            raise SetpointError(
                f"{self.where}.include: {list(include)} matches none of the {len(found)} files "
                f"below {self.root}.\n"
                "Valid: patterns on the relative path, such as '*.py', 'json/*' or 'asyncio/*.py'."
            )
        return chosen

    def documents(self) -> Iterator[Document]:
        """Read the files.

        Returns:
            an iterator of documents named `<name>/<relative path>`, sorted.

        Raises:
            SetpointError: there are no files, or one cannot be read.
        """
        for path in self.paths():
            try:
                data = (self.root / path).read_bytes()
            except OSError as error:
                raise SetpointError(
                    f"{self.where}: cannot read {self.root / path}: {error.strerror}.\n"
                    "Valid: a file this user may read; 'include' can leave it out."
                ) from error
            if is_utf8(data):
                yield Document(f"{self.config.name}/{path}", data)

    def inputs(self) -> Iterator[str]:
        """See `inputs_of`."""
        return inputs_of({path: self.root / path for path in self.paths()})

    def _python_files(self) -> Iterator[str]:
        for folder, subfolders, files in os.walk(self.root):
            subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
            relative = PurePosixPath(Path(folder).relative_to(self.root).as_posix())
            yield from (str(relative / name) for name in files if name.endswith(".py"))


def stdlib_size(config: Stdlib) -> int | None:
    """Bytes of the files; None where they cannot be listed, of which a check says why."""
    found = StdlibSource(config)
    try:
        return sum((found.root / path).stat().st_size for path in found.paths())
    except (OSError, SetpointError):
        return None


def is_utf8(data: bytes) -> bool:
    """Whether bytes are valid UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


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
        if kind in (PARQUET, ARROW) and importlib.util.find_spec("pyarrow") is None:
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
        if kind in (TEXT, JSONL, CSV) and compression_of(str(file)) != ".zst":
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


def text_size(config: Text) -> int | None:
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
