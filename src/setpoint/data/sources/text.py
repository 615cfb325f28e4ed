"""Texts of the user: plain files, or a field of the rows of files of records."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from setpoint.config import SetpointError
from setpoint.data.document import Document, FileRecord, Place, Placed
from setpoint.data.sources.config import Text
from setpoint.data.sources.files import File, inputs_of, opened
from setpoint.data.sources.formats import text_files
from setpoint.data.sources.records import Start, not_utf8, read_rows
from setpoint.data.sources.suffixes import TEXT, format_of
from setpoint.data.sources.token_rows import placed_documents

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
