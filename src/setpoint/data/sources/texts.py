"""Texts: files of plain text or records, and the sources of the standard library."""

from __future__ import annotations

import codecs
import hashlib
import importlib.util
import json
import os
import sysconfig
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath

from setpoint.config import Caution, Problem, SetpointError
from setpoint.data.document import BuiltSource, Document, FileRecord, Place, Placed
from setpoint.data.sources.config import NOT_PLAIN, PAIR, PAIRS_AS_TEXT, Conversations, Stdlib, Text
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
    FileList,
    compression_of,
    find_files,
    format_of,
    inputs_of,
    opened,
    problems_of,
    size_of,
    suffix_of,
)
from setpoint.data.sources.records import (
    fields_of,
    holds_tokens,
    not_utf8,
    read_rows,
    score_at,
    text_at,
    value_at,
)
from setpoint.hub.fetch import is_url

BLOCK = 1 << 20  # bytes of a file that are read at a time where a separator divides it
START = 4096  # bytes at the beginning of a file that are checked
MOST_FILES = 64  # whose beginnings are read by a check
# Tests are left out because some Pythons ship without them, installed packages because they are
# not the standard library. Debian calls the latter dist-packages.
SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages"}
)


class TextSource(BuiltSource[Text]):
    """Documents from files of text or records."""

    def __init__(self, config: Text, *, where: str = "data.sources") -> None:
        super().__init__(config, where=where)
        self._parts: list[tuple[str, File]] = []

    def files(self) -> dict[str, File]:
        """Files to read, by document name, without opening them.

        A missing path, a glob without a match, two files with the same name, and a folder with both
        text and records are errors.
        """
        return text_files(self.config, f"{self.where}.paths").checked()

    def documents(self) -> Iterator[Document]:
        """Read and check the files.

        Yields:
            documents in file order; if a file contains several, they are named `<name>#<number>`.

        Raises:
            SetpointError: see `files`; or a file cannot be read, is damaged, has no rows or is not
                UTF-8; a field is missing or not a text; or no file contains the separator.
        """
        self._parts = list(self.files().items())
        divided, texts, separator = False, 0, self.config.separator
        for part, (_, file) in enumerate(self._parts):
            is_text = format_in(self.config, file) == TEXT
            texts += is_text
            for number, (document, _) in enumerate(self.read(part, {})):
                divided = divided or (is_text and number > 0)
                yield document
        if separator is not None and texts and not divided:
            searched = "the file" if texts == 1 else f"any of the {texts} files"
            escaped = ""
            if "\\" in separator:
                escaped = (
                    '; a backslash is not an escape here: write "\\n" in double quotes '
                    "for a line break in TOML and YAML, where single quotes keep it literal"
                )
            raise SetpointError(
                f"{self.where}.separator: {separator!r} does not occur in {searched}{escaped}.\n"
                "Valid: text between documents, or null."
            )

    def inputs(self) -> Iterator[str]:
        """See `inputs_of`."""
        return inputs_of(self.files())

    def parts(self) -> Sequence[FileRecord]:
        """Files with sizes; URLs with the state that the service reports. See `StreamSource`."""
        records: list[FileRecord] = []
        self._parts = list(self.files().items())
        for name, file in self._parts:
            size = file.stat().st_size if isinstance(file, Path) else 0
            # Without the time, which differs for a copy.
            state = f"{size}" if isinstance(file, Path) else file.state()
            records.append(FileRecord(name, size, hashlib.sha256(state.encode()).hexdigest()))
        return records

    def read(self, part: int, place: Place) -> Iterator[Placed]:
        """See `StreamSource`; Parquet and JSON Lines seek to the position, others read up to it.

        Raises the same errors as `documents`.
        """
        (name, file), config = self._parts[part], self.config
        kind, first, offset = format_in(config, file), place.get("row", 0), place.get("offset", 0)
        if kind != TEXT:
            from setpoint.data.sources.tokens import placed_documents  # brings numpy

            fields = fields_of(config)
            for row in read_rows(
                name, file, kind, where=self.where, fields=fields, first=first, offset=offset
            ):
                next_place = partial(dict, row=row.number + 1, offset=row.end)
                yield from placed_documents(row, config, self.where, place, next_place)
                place = next_place()
        elif config.separator is not None:
            pieces = self._divided(file, config.separator.encode(), offset)
            for number, (piece, end) in enumerate(pieces, first):
                document = Document(f"{name}#{number:06d}", piece)
                yield document, partial(dict, row=number + 1, offset=end)
        elif not first:
            with opened(file, f"{self.where}.paths") as stream:
                data = stream.read()
            self._decode(codecs.getincrementaldecoder("utf-8")(), file, data, 0, final=True)
            yield Document(name, data), partial(dict, row=1)

    def _divided(self, file: File, separator: bytes, start: int = 0) -> Iterator[tuple[bytes, int]]:
        """Texts between separators, with the offset after each; the file is read in blocks.

        Arguments:
            start: offset of the first text; -1: the end of the file.
        """
        if start < 0:
            return
        decoder = codecs.getincrementaldecoder("utf-8")()
        # The last bytes read, in which a separator may begin, and the text before them: each byte
        # is searched once, however rare separators are.
        tail, before, offset = b"", [b""], start
        with opened(file, f"{self.where}.paths", start) as stream:
            while block := stream.read(BLOCK):
                self._decode(decoder, file, block, offset)
                offset += len(block)
                *pieces, last = (tail + block).split(separator)
                for piece in pieces:
                    data = b"".join([*before, piece])
                    start += len(data) + len(separator)
                    yield data, start
                    before = []
                cut = max(len(last) - len(separator) + 1, 0)
                tail = last[cut:]
                before.append(last[:cut])
            self._decode(decoder, file, b"", offset, final=True)
        yield b"".join([*before, tail]), -1

    def _decode(
        self,
        decoder: codecs.IncrementalDecoder,
        file: File,
        block: bytes,
        offset: int,
        final: bool = False,
    ) -> None:
        before = len(decoder.getstate()[0])
        try:
            decoder.decode(block, final)
        except UnicodeDecodeError as error:
            where, data = f"{self.where}.paths", bytes(error.object)
            raise not_utf8(
                where, str(file), data, error.start, error.reason, offset - before
            ) from error


class StdlibSource(BuiltSource[Stdlib]):
    """Documents of the running Python's standard library, one per `.py` file.

    Files are sorted by relative path. Caches, installed packages and files that are not UTF-8 are
    skipped.

    Arguments:
        root: folder of the standard library; None: the library of the running Python.
    """

    def __init__(
        self, config: Stdlib, *, where: str = "data.sources", root: Path | None = None
    ) -> None:
        super().__init__(config, where=where)
        self.root = root or Path(sysconfig.get_path("stdlib"))

    def paths(self) -> list[str]:
        """Paths of the files, relative to the library's folder, with forward slashes, sorted.

        Raises:
            SetpointError: the library has no `.py` files, or none matches `include`.
        """
        modules: list[str] = []
        for folder, subfolders, files in os.walk(self.root):
            subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
            relative = PurePosixPath(Path(folder).relative_to(self.root).as_posix())
            modules += [str(relative / name) for name in files if name.endswith(".py")]
        if not modules:
            raise SetpointError(
                f"{self.where}: type 'stdlib' finds no .py file below {self.root}: this Python "
                "keeps its library elsewhere (zipped, or compiled only).\n"
                "Valid: type 'text' with paths to text of your own, or type 'random'."
            )
        include = self.config.include
        chosen = [path for path in modules if any(fnmatchcase(path, glob) for glob in include)]
        if not chosen:
            raise SetpointError(
                f"{self.where}.include: {list(include)} matches none of the {len(modules)} files "
                f"below {self.root}.\n"
                "Valid: patterns on the relative path, such as '*.py', 'json/*' or 'asyncio/*.py'."
            )
        return sorted(chosen)

    def documents(self) -> Iterator[Document]:
        """Read the files, sorted by name, `<name>/<relative path>`.

        Raises:
            SetpointError: there are no files, or one cannot be read.
        """
        for path in self.paths():
            try:
                data = (self.root / path).read_bytes()
                data.decode("utf-8")
            except UnicodeDecodeError:
                continue
            except OSError as error:
                raise SetpointError(
                    f"{self.where}: cannot read {self.root / path}: {error.strerror}.\n"
                    "Valid: a file that you have permission to read; 'include' can exclude it."
                ) from error
            yield Document(f"{self.config.name}/{path}", data)

    def inputs(self) -> Iterator[str]:
        """See `inputs_of`."""
        return inputs_of({path: self.root / path for path in self.paths()})


def stdlib_size(config: Stdlib) -> int | None:
    """Bytes of the files; None if they cannot be listed, which a check reports."""
    source = StdlibSource(config)
    try:
        return size_of({path: source.root / path for path in source.paths()})
    except (OSError, SetpointError):
        return None


def format_in(config: Text | Conversations, file: File) -> str:
    """Format of a file; conversations are JSON Lines if the suffix is unknown."""
    given = config.format if isinstance(config, Text) else None
    kind = given or format_of(str(file))
    return JSONL if kind == TEXT and isinstance(config, Conversations) else kind


def text_files(config: Text | Conversations, field: str, *, remote: bool = True) -> FileList:
    """Files of a source, with all errors of its paths.

    Arguments:
        field: dotted path of `paths`, for messages.
        remote: whether to list URLs.
    """
    given = config.format if isinstance(config, Text) else None
    accept = None if given is None else (lambda file: format_of(str(file)) == given)
    listing = find_files(config.paths, name=config.name, field=field, accept=accept, remote=remote)
    if isinstance(config, Conversations) or given or listing.errors:
        return listing
    # A folder or glob with both texts and records is probably a mistake.
    named = {os.path.abspath(os.path.expanduser(path)) for path in config.paths}
    by_format: dict[str, File] = {}
    for file in listing.files.values():
        if str(file) not in named:
            by_format.setdefault(format_of(str(file)), file)
    kind = next((kind for kind in by_format if kind != TEXT), None)
    if kind is not None and TEXT in by_format:
        listing.errors[field] = SetpointError(
            f"{field}: {by_format[TEXT]} is text by its suffix, and {by_format[kind]} is {kind}.\n"
            f"Valid: a glob that matches one of them, such as '*{by_format[kind].suffix}'; format "
            f"= '{kind}' or 'text', with which only files of that format are taken from a folder; "
            "or a source for each."
        )
    return listing


def field_is_dead(config: Text) -> str | None:
    """Reason why `field` has no effect, or None."""
    return "the files are plain text" if _reads_only(config, TEXT) else None


def separator_is_dead(config: Text) -> str | None:
    """Reason why `separator` has no effect, or None."""
    return "each row is a document" if _reads_only(config, JSONL, CSV, PARQUET, ARROW) else None


def _reads_only(config: Text, *formats: str) -> bool:
    """True if all files have one of these formats, judging by the paths."""
    if config.format is not None:
        return config.format in formats
    # A path with no suffix, or an unknown one, may be a folder.
    known = {**SUFFIXES, ".txt": TEXT, ".md": TEXT}
    return {known.get(suffix_of(path)) for path in config.paths} <= {*formats}


def file_problems(config: Text | Conversations) -> Iterator[Problem | Caution]:
    """Find paths without files, unreadable files, and records read as plain text."""
    listing = text_files(config, f"{HERE}.paths", remote=False)
    yield from problems_of(listing.errors)
    kinds = {name: format_in(config, file) for name, file in listing.files.items()}
    has_arrow = importlib.util.find_spec("pyarrow") is not None
    for name, file in listing.files.items():
        needs = kinds[name] in (PARQUET, ARROW) or compression_of(str(file)) == ".zst"
        if needs and not has_arrow:
            message, hint = f"{file} needs the package 'pyarrow'", f"pip install {EXTRA}"
            yield Problem("paths", message, hint=hint)
            break
    local = [(name, file) for name, file in listing.files.items() if isinstance(file, Path)]
    for name, file in local[:MOST_FILES]:
        if kinds[name] not in (PARQUET, ARROW) or has_arrow:
            yield from _unreadable(config, name, file, kinds[name])
    if isinstance(config, Conversations):
        return
    texts = [file for name, file in local if kinds[name] == TEXT]
    if texts and config.format is None:
        yield from _records_in(texts[0])
    # Files of a folder, which the rules on fields without effect do not see.
    if any(map(is_url, config.paths)) or listing.errors or not kinds:
        return
    if {*kinds.values()} == {TEXT} and config.field != "text":
        hint = "Remove it, or set `format` where the files hold records."
        yield Problem("field", "has no effect: the files are plain text", hint=hint)
    if not texts and config.separator is not None:
        yield Problem("separator", "has no effect: each row is a document", hint="Remove it.")


def _unreadable(
    config: Text | Conversations, name: str, file: Path, kind: str
) -> Iterator[Problem | Caution]:
    """Find a file with an invalid first row or encoding, or with preference pairs."""
    try:
        if kind != TEXT:
            fields = fields_of(config) if isinstance(config, Text) else None
            row = next(read_rows(name, file, kind, where=HERE, fields=fields))
            if isinstance(config, Text):
                read_field = value_at if holds_tokens(config.field) else text_at
                read_field(row, config.field, f"{HERE}.field")
                if config.score is not None:
                    score_at(row, config.score, f"{HERE}.score")
                names = next(read_rows(name, file, kind, where=HERE)).values.keys()
                if {*PAIR} <= names and config.field not in PAIR:
                    yield Caution(
                        PAIRS_AS_TEXT,
                        "field",
                        f"rows of {file.name} hold preference pairs ({', '.join(PAIR)}), of which "
                        f"nothing is trained on but {config.field!r}, as text",
                        hint="Setpoint has no training on preferences. field = 'chosen' trains on "
                        "the preferred text.",
                    )
            return
        with opened(file, f"{HERE}.paths") as stream:
            start = stream.read(START)
        try:
            codecs.getincrementaldecoder("utf-8")().decode(start)
        except UnicodeDecodeError as error:
            reason = error.reason
            raise not_utf8(f"{HERE}.paths", str(file), start, error.start, reason) from None
    except SetpointError as error:
        yield from problems_of({str(error).partition(": ")[0]: error})


def _records_in(file: Path) -> Iterator[Caution]:
    """Detect records at the start of a file that is plain text by its suffix."""
    try:
        with file.open("rb") as opened_file:
            start = opened_file.read(START)
    except OSError:
        return  # reported as a problem
    kind = PARQUET if start.startswith(b"PAR1") else ""
    line, end, _ = start.partition(b"\n")
    if end and line.lstrip().startswith(b"{"):
        try:
            kind = JSONL if isinstance(json.loads(line), dict) else ""
        except ValueError:
            return
    if kind:
        name, instead = {
            JSONL: ("JSON Lines", "its braces and keys would be trained on as text"),
            PARQUET: ("Parquet", "it is not text, so reading it would fail"),
        }[kind]
        yield Caution(
            NOT_PLAIN,
            "paths",
            f"{file.name} contains {name}: {instead}",
            hint=f"Set format = '{kind}', and field to the one that holds the text; format = "
            f"'text' if that is intended.",
        )


def beginnings(config: Text) -> Iterator[tuple[str, str]]:
    """Names of local files with the start of their text, or the text of their first row."""
    files = text_files(config, f"{HERE}.paths", remote=False).files
    for name, file in list(files.items())[:MOST_FILES]:
        kind = format_in(config, file)
        if not isinstance(file, Path):
            continue
        try:
            if kind == TEXT:
                with opened(file, f"{HERE}.paths") as stream:
                    yield name, stream.read(START).decode(errors="ignore")
            elif not holds_tokens(config.field):
                row = next(read_rows(name, file, kind, where=HERE, fields=fields_of(config)))
                yield name, text_at(row, config.field, f"{HERE}.field").decode()
        except SetpointError:
            continue  # reported by `file_problems`


def text_count(config: Text) -> int | None:
    """Number of documents in undivided text files; None if unknown."""
    listing = text_files(config, f"{HERE}.paths", remote=False)
    texts = all(format_in(config, file) == TEXT for file in listing.files.values())
    if config.separator or listing.errors or not texts or any(map(is_url, config.paths)):
        return None
    files = (file for file in listing.files.values() if isinstance(file, Path))
    return sum(file.stat().st_size > 0 for file in files)


def text_size(config: Text) -> int | None:
    """Bytes of the files, an upper bound on the tokens; None if unknown."""
    listing = text_files(config, f"{HERE}.paths", remote=False)
    kinds = {format_in(config, file) for file in listing.files.values()}
    if listing.errors or kinds & {PARQUET, ARROW} or any(map(is_url, config.paths)):
        return None
    try:
        return size_of(listing.files)
    except OSError:
        return None
