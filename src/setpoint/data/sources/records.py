"""Rows of JSON, CSV, Parquet and Arrow files, with their positions."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, islice
from math import isfinite, nan
from pathlib import Path
from typing import Any, NamedTuple, cast

from setpoint.config import SetpointError, nearest
from setpoint.data.sources.config import HubDataset, Text
from setpoint.data.sources.files import (
    ARROW,
    CSV,
    JSONL,
    PARQUET,
    File,
    compression_of,
    named_errors,
    need_arrow,
    opened,
    suffix_of,
)

LONGEST = 1 << 28  # characters of a value of CSV, and of a row of a JSON array
BINARY_OF = {"string": "binary", "large_string": "large_binary"}
BUFFER = 1 << 20  # bytes of a column of a Parquet file that are read at a time
BATCH = 256  # rows of a Parquet file that are decoded at a time
SHOWN_KEYS = 12
UTF_16_LE, UTF_16_BE = b"\xff\xfe", b"\xfe\xff"  # byte order marks
Fields = Mapping[str, str] | None
TOKENS = "input_ids"
"""Field of token ids in tokenized data sets."""
BESIDE = ("labels", "attention_mask", "position_ids")
"""Optional fields of tokenized rows."""


class FileRow(NamedTuple):
    """A row of a file.

    Arguments:
        file: document name without the row, `source/relative/path`.
        unit: "line" or "row", for messages.
        number: number in the file, from 0.
        end: byte offset after the row if a reader can start there; otherwise 0.
    """

    file: str
    unit: str
    number: int
    values: Mapping[str, object]
    end: int = 0

    @property
    def name(self) -> str:
        """Name of the document of this row."""
        return f"{self.file}#{self.number:06d}"

    @property
    def place(self) -> str:
        """File and row, counted from 1, for messages."""
        return f"{self.file}, {self.unit} {self.number + 1:,}"


class RowError(ValueError):
    """Invalid row; the reader adds file and row number."""


def wrong_kind(field: str, needed: str, value: object) -> RowError:
    """Error for a field of the wrong type."""
    text = repr(value)
    kind = f"{text if len(text) <= 40 else text[:40] + '...'}, of type {type(value).__name__}"
    actual = "missing" if value is None else kind
    return RowError(f"field '{field}' must be {needed}, but is {actual}")


def read_rows(
    name: str,
    file: File,
    format: str,
    *,
    where: str,
    fields: Mapping[str, str] | None = None,
    first: int = 0,
    offset: int = 0,
) -> Iterator[FileRow]:
    """The rows of a file, in bounded memory.

    Blank lines of JSON Lines are skipped, but counted.

    Arguments:
        name: name of the file in document names.
        format: "jsonl", "csv", "parquet" or "arrow".
        where: dotted path of the section, for messages.
        fields: required fields, which may be dotted, by the option that names them; None: all. With
            `TOKENS`, the fields of `BESIDE` are also read.
        first: number of the first row to read.
        offset: `FileRow.end` of the previous row.

    Raises:
        SetpointError: the file cannot be read, is damaged, has no rows or lacks a column, or a row
            is invalid; names file and row.
    """
    empty = not first
    for row in _READERS[format](name, file, f"{where}.paths", fields, first, offset):
        empty = False
        yield row
    if empty:
        raise SetpointError(
            f"{where}.paths: {file} has no rows.\nValid: a file with rows; exclude this one."
        )


def holds_tokens(field: str) -> bool:
    """True if a field, which may be dotted, contains token ids."""
    return field.rpartition(".")[2] == TOKENS


def fields_of(config: Text | HubDataset) -> dict[str, str]:
    """Fields that a source reads, by the option that names them."""
    fields = {"field": config.field, "score": config.score}
    return {option: field for option, field in fields.items() if field is not None}


def needed_columns(fields: Fields, present: Sequence[str], name: str, where: str) -> list[str]:
    """Columns to read: the outermost parts of dotted fields, and optional ones of tokenized rows.

    Arguments:
        fields: by the option that names them; None: all columns.
        name: name of the table, for messages.
        where: dotted path of the section, or of its `paths`.

    Raises:
        SetpointError: the table lacks a column.
    """
    if fields is None:
        return list(present)
    columns: list[str] = []
    for option, field in fields.items():
        columns.append(field if field in present else field.partition(".")[0])
        if columns[-1] not in present:
            shown = ", ".join(present[:SHOWN_KEYS]) + (", ..." if len(present) > SHOWN_KEYS else "")
            raise SetpointError(
                f"{where.removesuffix('.paths')}.{option}: {name} has no column {columns[-1]!r}; "
                f"its columns are {shown}.\n"
                f"Valid: {', '.join(nearest_fields(field, present)) or 'one of them'}."
            )
    extra = [column for column in BESIDE if TOKENS in columns and column in present]
    return list(dict.fromkeys(columns + extra))


def value_at(row: FileRow, field: str, where: str) -> object:
    """Value of a field, which may be dotted.

    Arguments:
        where: dotted path of the option that names the field.

    Raises:
        SetpointError: the row has no such field; names file and row.
    """
    values: object = row.values
    if field in row.values:
        return row.values[field]
    for part in field.split("."):
        if not isinstance(values, Mapping) or part not in values:
            raise SetpointError(_no_field(row, field, values, where))
        values = cast(Mapping[str, object], values)[part]
    return values


def text_at(row: FileRow, field: str, where: str) -> bytes:
    """Text of a field in UTF-8.

    Raises:
        SetpointError: the row has no such field, or the field is not text or contains half of a
            surrogate pair; names file and row.
    """
    value = value_at(row, field, where)
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise SetpointError(
                f"{where}: {row.place}: character {error.start} is {value[error.start]!r}, half "
                f"of a surrogate pair, which UTF-8 cannot represent.\nValid: text that is valid "
                f"Unicode."
            ) from None
    shown = repr(value)
    shown = f"{shown if len(shown) <= 60 else shown[:60] + '...'} ({type(value).__name__})"
    raise SetpointError(
        f"{where}: {row.place}: {field!r} is {'null' if value is None else shown}, not a str.\n"
        f"Valid: a field with a string in every row, or {TOKENS} for tokens."
    )


def score_at(row: FileRow, field: str, where: str) -> float:
    """Number of a field.

    Raises:
        SetpointError: the row has no such field, or the field is not a finite number; names file
            and row.
    """
    value = value_at(row, field, where)
    try:  # CSV has texts
        number = float(cast(Any, value)) if not isinstance(value, bool) else nan
    except (TypeError, ValueError, OverflowError):
        number = nan
    if not isfinite(number):
        raise SetpointError(
            f"{where}: {row.place}: {field!r} is {value!r:.60}, not a finite number.\n"
            "Valid: a field with a number in every row."
        )
    return number


def _no_field(row: FileRow, field: str, level: object, where: str) -> str:
    if isinstance(level, Mapping):
        keys = [str(key) for key in cast(Mapping[object, object], level)]
        more = ", ..." if len(keys) > SHOWN_KEYS else ""
        contents = f"its fields are {', '.join(keys[:SHOWN_KEYS])}{more}" if keys else "it is empty"
    else:
        contents = f"it contains {level!r:.60}"
    close = nearest_fields(field, [*_field_paths(row.values)])
    valid = f"{', '.join(close)}; " if close else ""
    return (
        f"{where}: {row.place} has no field {field!r}; {contents}.\n"
        f"Valid: {valid}a field that every row has."
    )


def nearest_fields(field: str, fields: Sequence[str]) -> list[str]:
    """Fields whose name, or last part, resembles that of a missing field."""
    last = {name: name.rpartition(".")[2] for name in fields}
    alike = nearest(field.rpartition(".")[2], [*dict.fromkeys(last.values())])
    by_part = (name for part in alike for name in fields if last[name] == part)
    return list(dict.fromkeys([*by_part, *nearest(field, list(fields))]))


def _field_paths(values: Mapping[Any, object], above: str = "") -> Iterator[str]:
    """Dotted names of all fields of a row."""
    for key, value in values.items():
        yield f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _field_paths(cast(Mapping[Any, object], value), f"{above}{key}.")


def _json(
    name: str, file: File, where: str, fields: Fields, first: int, offset: int
) -> Iterator[FileRow]:
    """Rows of JSON Lines, or of one array, which is read in blocks."""
    with opened(file, where, offset) as stream:
        end, lines = offset, cast(Iterator[bytes], iter(stream))
        begins = not offset
        for number, line in enumerate(lines, first):
            if begins and line.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[":
                more = iter(partial(stream.read, BUFFER), b"")
                yield from islice(_items(name, where, chain([line], more), end), first, None)
                return
            end += len(line)
            try:
                # A byte order mark may begin a file.
                text = line.decode("utf-8-sig" if number == 0 else "utf-8")
            except UnicodeDecodeError as error:
                place = f"{name}, line {number + 1:,}"
                raise not_utf8(where, place, line, error.start, error.reason) from None
            if not text.strip():
                continue
            begins = False
            place = f"{name}, line {number + 1:,}"
            try:
                values: object = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise SetpointError(_not_json(where, place, text, error)) from None
            yield FileRow(name, "line", number, _object(values, where, place), end)


def _items(name: str, where: str, blocks: Iterator[bytes], before: int) -> Iterator[FileRow]:
    """Rows of a JSON array.

    Arguments:
        before: number of bytes in the file before the array.
    """
    decoder, utf8 = json.JSONDecoder(), codecs.getincrementaldecoder("utf-8-sig")()
    text, i, number, size = "", 0, 0, before
    expected = "["  # what comes next: a character, one of two, or "" for a value
    while True:
        place = f"{name}, row {number + 1:,}"
        while text[i : i + 1].isspace():
            i += 1
        char = text[i : i + 1]
        error: Exception = ValueError(f"{' or '.join(expected or ['a value'])} is missing")
        if char and (char in expected or (char == "]" and not number)):
            i += 1
            if char == "]":
                remainder = text[i:] + b"".join(blocks).decode("utf-8", "replace")
                if remainder.strip():
                    error = ValueError("text follows the end of the array")
                    raise SetpointError(_not_json(where, name, remainder, error))
                return
            expected = ""
            continue
        if not expected:
            try:
                values, end = decoder.raw_decode(text, i)
                yield FileRow(name, "row", number, _object(values, where, place))
                i, number, expected = end, number + 1, ",]"
                continue
            except (ValueError, RecursionError) as found:
                error = found
        is_over = (char and expected) or len(text) - i > LONGEST
        block = None if is_over else next(blocks, None)
        if block is None:
            raise SetpointError(_not_json(where, place, text[i:], error))
        try:
            text, i, size = text[i:] + utf8.decode(block), 0, size + len(block)
        except UnicodeDecodeError as found:
            data = bytes(found.object)
            raise not_utf8(
                where, place, data, found.start, found.reason, size + len(block) - len(data)
            ) from None


def _object(values: object, where: str, place: str) -> dict[str, object]:
    if not isinstance(values, dict):
        raise SetpointError(
            f"{where}: {place} is a {type(values).__name__}, not a JSON object.\n"
            "Valid: a JSON object in each line, or one array of them."
        )
    return cast(dict[str, object], values)


def not_utf8(
    where: str, place: str, data: bytes, start: int, reason: str, before: int = 0
) -> SetpointError:
    """Error for bytes that are not UTF-8; the byte order mark of UTF-16 is recognized.

    Arguments:
        start: offset of the invalid byte in `data`.
        before: number of bytes in the file before `data`.
    """
    offset = before + start
    encoding = "UTF-16" if not offset and data[:2] in (UTF_16_LE, UTF_16_BE) else "LATIN1"
    named = "" if encoding == "LATIN1" else "; its byte order mark is UTF-16's"
    return SetpointError(
        f"{where}: {place} is not UTF-8: byte 0x{data[start]:02x} at offset {offset} ({reason})"
        f"{named}.\n"
        f"Valid: UTF-8 text; convert it (iconv -f {encoding} -t UTF-8) or exclude the file."
    )


def _not_json(where: str, place: str, text: str, error: Exception) -> str:
    if isinstance(error, RecursionError):
        reason = "its values are nested too deeply"
    elif isinstance(error, json.JSONDecodeError):
        position = error.pos + 1 - (len(error.doc) - len(text))
        reason = f"{error.msg.removesuffix(' at')} at character {position:,}"
    else:
        reason = str(error).partition(";")[0]
    hint = "; to read it as plain text, set format = 'text'"
    return (
        f"{where}: {place} is not JSON: {reason}.\n"
        f"Valid: a JSON object in each line, or one array of them{hint * text.startswith('{')}."
    )


def _csv(
    name: str, file: File, where: str, fields: Fields, first: int, offset: int
) -> Iterator[FileRow]:
    csv.field_size_limit(LONGEST)
    number, header = 0, list[str]()
    with opened(file, where) as stream:
        # Bytes that are not UTF-8 are kept as they are, so that their row can be named.
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        delimiter = "\t" if suffix_of(str(file)) == ".tsv" else ","
        rows = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            header = next(rows, [])
            other = next((char for char in ";\t|" if char in "".join(header[:1])), "")
            if len(header) == 1 and other and header[0] not in (fields or {}).values():
                raise SetpointError(
                    f"{where}: {name} separates columns by {other!r}: {header[0]}.\n"
                    "Valid: commas in .csv files, tabs in .tsv files."
                )
            twice = sorted({column for column in header if header.count(column) > 1})
            if not header or twice:
                reason = f"names the column {twice[0]!r} twice" if twice else "is empty"
                raise SetpointError(
                    f"{where}: the first row of {name} {reason}.\n"
                    "Valid: a table whose first row names its columns."
                )
            chosen = [
                header.index(column) for column in needed_columns(fields, header, name, where)
            ]
            for cells in filter(None, rows):
                if len(cells) != len(header):
                    raise csv.Error(f"{len(header)} columns are named, but it has {len(cells)}")
                if number >= first:
                    values = {header[i]: _utf8(cells[i], name, number, where) for i in chosen}
                    yield FileRow(name, "row", number, values)
                number += 1
        except csv.Error as error:
            raise SetpointError(
                f"{where}: {name}, row {number + 1:,} cannot be read: {error}.\n"
                "Valid: a value for each column; quotes that are closed and doubled inside values."
            ) from None
        finally:
            text.detach()


def _utf8(value: str | bytes, name: str, number: int, where: str) -> str:
    """A text from a table, checked to be valid UTF-8."""
    try:
        if isinstance(value, str):
            if value.isascii():
                return value
            value = value.encode("utf-8", "surrogateescape")
        return value.decode()
    except UnicodeDecodeError as error:
        place = f"{name}, row {number + 1:,}"
        raise not_utf8(where, place, error.object, error.start, error.reason) from None


def _parquet(
    name: str, file: File, where: str, fields: Fields, first: int, offset: int
) -> Iterator[FileRow]:
    need_arrow("Parquet files", where)
    from pyarrow import parquet

    _not_compressed(file, where)
    with opened(file, where) as stream:
        table = parquet.ParquetFile(stream, buffer_size=BUFFER)
        chosen = needed_columns(fields, table.schema_arrow.names, name, where)
        groups = table.num_row_groups
        sizes = [table.metadata.row_group(group).num_rows for group in range(groups)]
        skipped = next((n for n, end in enumerate(accumulate(sizes)) if end > first), groups)
        before = sum(sizes[:skipped])
        # One group after the other: an iterator over several keeps what it has read.
        batches = (
            batch
            for group in range(skipped, groups)
            for batch in table.iter_batches(BATCH, [group], chosen, use_threads=False)
        )
        yield from _rows_of_batches(batches, name, where, first, before)


def _arrow(
    name: str, file: File, where: str, fields: Fields, first: int, offset: int
) -> Iterator[FileRow]:
    arrow = need_arrow("Arrow files", where)
    _not_compressed(file, where)
    with named_errors(file, where), opened(file, where) as stream:
        magic = stream.read(6)
        stream.seek(0)
        source = arrow.memory_map(str(file)) if isinstance(file, Path) else stream
        if magic == b"ARROW1":  # the file format; `datasets` writes the stream format
            table = arrow.ipc.open_file(source)
            batches = (table.get_batch(index) for index in range(table.num_record_batches))
        else:
            table = batches = arrow.ipc.open_stream(source)
        chosen = needed_columns(fields, table.schema.names, name, where)
        selected = (batch.select(chosen) for batch in batches)
        yield from _rows_of_batches(selected, name, where, first)


def _not_compressed(file: File, where: str) -> None:
    if compression_of(str(file)):
        raise SetpointError(
            f"{where}: {file} is a compressed file of a format that is read from the end.\n"
            "Valid: the file without the compression around it; Parquet and Arrow compress inside."
        )


def _rows_of_batches(
    batches: Any, name: str, where: str, first: int, number: int = 0
) -> Iterator[FileRow]:
    """Rows of Arrow record batches as Python values, with bytes as text.

    Arguments:
        first: number of the first row to read.
        number: number of the first row of the batches.
    """
    for batch in batches:
        skipped = min(max(first - number, 0), batch.num_rows)
        number += skipped
        if skipped:
            batch = batch.slice(skipped)
        names = batch.schema.names
        columns = [_values(column, name, number, where) for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield FileRow(name, "row", number, dict(zip(names, row, strict=True)))
            number += 1


def _values(column: Any, name: str, first: int, where: str) -> list[object]:
    values: list[object]
    try:
        values = column.to_pylist()
    except UnicodeDecodeError as error:  # of which row is not said
        binary = BINARY_OF.get(str(column.type))
        if binary is None:  # of a list or record
            place = f"{name}, row {first + 1:,} or one after it,"
            raise not_utf8(where, place, error.object, error.start, error.reason) from None
        values = column.view(binary).to_pylist()
    if any(isinstance(value, bytes) for value in values):
        values = [
            _utf8(value, name, number, where) if isinstance(value, bytes) else value
            for number, value in enumerate(values, first)
        ]
    return values


_Reader = Callable[[str, File, str, Fields, int, int], Iterator[FileRow]]
_READERS: dict[str, _Reader] = {JSONL: _json, CSV: _csv, PARQUET: _parquet, ARROW: _arrow}
