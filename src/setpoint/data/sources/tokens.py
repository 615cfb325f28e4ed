"""Existing token ids: token files, prepared folders, and rows of `input_ids`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import exp
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from setpoint.config import Problem, SetpointError
from setpoint.data.document import BuiltSource, Document, Place, Placed, TokenPlace
from setpoint.data.sources.config import HubDataset, Text, Tokens
from setpoint.data.sources.files import (
    HERE,
    File,
    FileList,
    find_files,
    inputs_of,
    named_errors,
    problems_of,
)
from setpoint.data.sources.records import (
    BESIDE,
    TOKENS,
    FileRow,
    RowError,
    holds_tokens,
    score_at,
    text_at,
    value_at,
    wrong_kind,
)
from setpoint.data.token_store import (
    MANIFEST,
    is_prepared,
    read_manifest,
    stored_documents,
    verify,
)
from setpoint.data.tokenizer import Tokenizer
from setpoint.data.vocabulary import beyond_vocabulary
from setpoint.hub.fetch import fetch_files, is_url, split_hub_id

Ids = npt.NDArray[np.integer[Any]]
CHUNK = 1 << 22  # tokens searched at a time
SUFFIXES = (".npy", ".bin")
INDEX = ".idx"
# Magic numbers of modded-nanogpt's and llm.c's files: a header of 256 32-bit integers, of which the
# first is the magic number, the second a version, and the third the number of tokens.
MAGIC = {20240520: "<u2", 20240801: "<u4"}
HEADER = 256 * 4
INDEX_MAGIC = b"MMIDIDX\x00\x00"
# Megatron's codes; 6 and 7 are floating point.
INDEX_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
IGNORED = -100  # label of tokens that are not targets, as in PyTorch
SAMPLED = 1 << 16  # tokens of a file that are checked before training
# Distance of two distributions above which ids are halves of wider ones, and its p-value.
LEAST_GAP, CHANCE = 0.1, 1e-3
VALID_IDS = (
    "the tokenizer that made the tokens, and their dtype; tokenizer = ids where there is none, by "
    "model.vocab_size."
)
_HUB = re.compile(
    r"hf://datasets/(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w.%-]+))?"
    r"(/(?P<inside>.*?))?/*"
)


class TokensSource(BuiltSource[Tokens]):
    """Documents from memory-mapped files of token ids."""

    def tokenized(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """Documents of prepared data or files: divided by index, by separators, or one per file.

        Separators at the ends of a document are dropped, since they are added between documents.
        Without a separator id nothing is divided or dropped.

        Raises:
            SetpointError: a file is missing, damaged, empty or of another dtype, or has an id
                outside the vocabulary; names file and position.
        """
        paths = f"{self.where}.paths"
        for folder in prepared_folders(self.config, paths):
            try:
                yield from stored_documents(folder, self.config.name, tokenizer)
            except SetpointError as error:
                raise SetpointError(f"{paths}: {error}") from error
        separator = self.config.separator
        if separator is None and getattr(tokenizer, "separates", True):
            separator = tokenizer.separator
        for name, file in self._files().items():
            path = Path(str(file))
            with named_errors(path, paths):
                layout = layout_of(path, self.config.token_dtype, self.where)
                if wrong := find_wrong_ids(path, layout, tokenizer.vocab_size):
                    raise self._error(wrong)
                shape = (layout.count,)
                ids = np.asarray(np.memmap(path, layout.dtype, "r", layout.offset, shape))
            place = TokenPlace(str(path), layout.dtype.str, layout.offset, layout.count)
            ends = self._separators(ids, separator, tokenizer.vocab_size, path)
            if layout.documents is None:
                spans = [(start + 1, end) for start, end in pairwise([-1, *ends, len(ids)])]
            else:
                spans = list(pairwise(layout.documents.tolist()))
                if separator is not None:
                    spans = [_without_separators(ids, *span, separator) for span in spans]
            spans = [(start, end) for start, end in spans if start < end]
            if not spans:
                raise SetpointError(
                    f"{paths}: {file} has no tokens but separators.\n"
                    "Valid: a file with tokens; exclude this one."
                )
            for number, (start, end) in enumerate(spans):
                numbered = f"{name}#{number:06d}" if len(spans) > 1 else name
                yield Document(numbered, tokens=ids[start:end], place=place._replace(first=start))

    def inputs(self) -> Iterator[str]:
        """Files and prepared folders; see `inputs_of`."""
        for folder in prepared_folders(self.config, f"{self.where}.paths"):
            text = (folder / MANIFEST).read_bytes()
            size = sum(size for size, _ in json.loads(text)["files"].values())
            yield f"{self.config.name}/{folder.name}\t{size} {hashlib.sha256(text).hexdigest()}"
        yield from inputs_of(self._files())

    def _files(self) -> dict[str, File]:
        return token_files(self.config, f"{self.where}.paths", fetch=True).checked()

    def _separators(self, ids: Ids, separator: int | None, size: int, path: Path) -> list[int]:
        """Positions of separators; checks all ids against the vocabulary."""
        positions: list[int] = []
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            wrong = np.flatnonzero((chunk < 0) | (chunk >= size))
            if len(wrong):
                first = int(wrong[0])
                message = beyond_vocabulary(path, int(chunk[first]), start + first, size)
                raise self._error(WrongIds("paths", message))
            if separator is not None:
                positions += (np.flatnonzero(chunk == separator) + start).tolist()
        return positions

    def _error(self, wrong: WrongIds) -> SetpointError:
        return SetpointError(f"{self.where}.{wrong.field}: {wrong.message}.\nValid: {wrong.valid}")


def _without_separators(ids: Ids, start: int, end: int, separator: int) -> tuple[int, int]:
    while start < end and ids[start] == separator:
        start += 1
    while start < end and ids[end - 1] == separator:
        end -= 1
    return start, end


def _has_tokens(file: File) -> bool:
    return file.suffix in SUFFIXES


def token_files(config: Tokens, field: str, *, fetch: bool = False) -> FileList:
    """Files of a source, without those of prepared data.

    Arguments:
        field: dotted path of `paths`, for messages.
        fetch: whether to download files of the hub; otherwise only cached ones are found.
    """
    local = _local_paths(config, field, fetch)
    patterns = {index: path for index, path in local.items() if not is_prepared(Path(path))}
    if not patterns:
        return FileList({}, {})
    listing = find_files(patterns, name=config.name, field=field, accept=_has_tokens, remote=False)
    for index, path in patterns.items():
        if is_url(path) and f"{field}.{index}" not in listing.errors:
            listing.errors[f"{field}.{index}"] = SetpointError(
                f"{field}.{index}: '{path}' is not on this machine, but token files are mapped "
                f"into memory.\nValid: a path on this machine, to which they are copied; "
                "hf://datasets/owner/name, which is downloaded."
            )
    parents = {file.parent for file in listing.files.values() if isinstance(file, Path)}
    inside = sorted(str(parent) for parent in parents if is_prepared(parent))
    if inside and field not in listing.errors:
        listing.errors[field] = SetpointError(
            f"{field}: {inside[0]}, a folder in it, is prepared data.\n"
            f"Valid: that folder itself, paths = ['{inside[0]}']."
        )
    wrong = [file for file in listing.files.values() if not _has_tokens(file)]
    if wrong and field not in listing.errors:
        listing.errors[field] = SetpointError(
            f"{field}: {wrong[0]} is not a file of tokens.\n"
            f"Valid: {' and '.join(SUFFIXES)} files; for Megatron's pairs, the .bin file."
        )
    return listing


def names_token_files(config: Tokens) -> bool:
    """True if paths lead to prepared data or only to token files; opens nothing."""
    if any(is_prepared(Path(os.path.expanduser(path))) for path in config.paths):
        return True
    listing = find_files(config.paths, name=config.name, field="paths", remote=False)
    suffixes = {file.suffix for file in listing.files.values()}
    return not listing.errors and bool(suffixes) and suffixes <= {*SUFFIXES, INDEX}


def prepared_folders(
    config: Tokens, field: str = f"{HERE}.paths", *, fetch: bool = True
) -> list[Path]:
    """Paths of prepared data; see `token_files`.

    Raises:
        SetpointError: a download failed.
    """
    paths = map(Path, _local_paths(config, field, fetch).values())
    return [path for path in paths if is_prepared(path)]


def _local_paths(config: Tokens, field: str, fetch: bool) -> dict[int, str]:
    """Local paths by their indices, without hub files that are not cached.

    Raises:
        SetpointError: a download failed.
    """
    local: dict[int, str] = {}
    for index, path in enumerate(config.paths):
        parts = _HUB.fullmatch(path)
        revision = unquote(parts["revision"] or "") if parts else ""
        repository = parts["name"] + (f"@{revision}" if revision else "") if parts else ""
        if parts is None or split_hub_id(repository) is None:
            local[index] = os.path.expanduser(path)
            continue
        inside = parts["inside"] or ""
        index_name = f"{inside.removesuffix('.bin')}{INDEX}"
        try:
            folder = fetch_files(
                repository,
                [inside, f"{inside}/*", index_name] if inside else ["*"],
                instead="A folder on this machine works without the hub.",
                kind="dataset",
                cached=not fetch,
            )
        except SetpointError as error:
            if fetch:
                raise SetpointError(f"{field}.{index}: {error}") from error
            continue
        # The cache may be incomplete, unless a manifest lists all files.
        if fetch or is_prepared(folder / inside):
            local[index] = str(folder / inside)
    return local


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """Position and dtype of the tokens in a file.

    Arguments:
        offset: bytes before the first token.
        documents: (documents + 1,) boundaries of documents, in tokens; None: unknown.
        says_dtype: whether the dtype comes from a header or index, not from the configuration.
    """

    dtype: np.dtype[Any]
    offset: int
    count: int
    documents: npt.NDArray[np.int64] | None = None
    says_dtype: bool = True


def layout_of(path: Path, dtype: str | None, where: str) -> TokenLayout:
    """Read the layout of a file from its header or index; without one, all of it is tokens.

    Arguments:
        dtype: dtype given in the configuration.
        where: dotted path of the section, for messages.

    Raises:
        SetpointError: the dtype is unknown or contradictory, or the file is empty or truncated.
    """
    size, index = path.stat().st_size, path.with_suffix(INDEX)
    source = "header"
    if path.suffix == ".npy":
        layout = _npy_layout(path, where)
    elif index.is_file():
        layout, source = _index_layout(index, where), "index"
    else:
        layout = _header_layout(path, size)
    if layout is None and dtype is None:
        raise SetpointError(
            f"{where}.token_dtype: {path} has neither a header nor an .idx file that gives "
            "the dtype of its tokens.\nValid: uint16 for nanoGPT's files, or the dtype they were "
            "written with."
        )
    if layout is None:
        given = np.dtype(dtype).newbyteorder("<")
        if size % given.itemsize:
            raise SetpointError(
                f"{where}.paths: {path} has {size:,} bytes, which is not a multiple of {dtype}'s "
                f"{given.itemsize}: it is truncated, or has another dtype.\nValid: a complete file."
            )
        layout = TokenLayout(given, 0, size // given.itemsize, says_dtype=False)
    if dtype is not None and dtype != layout.dtype.name:
        raise SetpointError(
            f"{where}.token_dtype: {dtype} is not the dtype in {path}, {layout.dtype.name}.\n"
            f"Valid: null, or {layout.dtype.name}."
        )
    count = (size - layout.offset) // layout.dtype.itemsize
    if count < layout.count:
        raise SetpointError(
            f"{where}.paths: {path} is truncated: it contains {count:,} of the "
            f"{layout.count:,} tokens in its {source}.\nValid: a complete file."
        )
    if not layout.count:
        raise SetpointError(f"{where}.paths: {path} is empty.\nValid: a file with tokens.")
    return layout


def _npy_layout(path: Path, where: str) -> TokenLayout:
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
        except ValueError:
            raise SetpointError(
                f"{where}.paths: {path} is not a .npy file.\nValid: a complete file."
            ) from None
        try:
            # Version 3 is version 2 with names in UTF-8, which only records have.
            old = version == (1, 0)
            read = (
                np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read(file)
        except ValueError:
            raise SetpointError(
                f"{where}.paths: the header of {path} cannot be read.\nValid: a complete file."
            ) from None
        offset = file.tell()
    if dtype.kind not in "iu" or len(shape) != 1 or not shape[0]:
        raise SetpointError(
            f"{where}.paths: {path} contains an array of {dtype.name} with shape {shape}.\n"
            "Valid: a sequence of token ids: integers, one dimension, not empty."
        )
    return TokenLayout(dtype, offset, shape[0])


def _header_layout(path: Path, size: int) -> TokenLayout | None:
    if size < HEADER:
        return None
    magic, _, count = np.fromfile(path, "<i4", 3).tolist()
    if magic not in MAGIC or count <= 0:
        return None
    return TokenLayout(np.dtype(MAGIC[magic]), HEADER, count)


def _index_layout(path: Path, where: str) -> TokenLayout:
    """Layout from Megatron's index."""
    with path.open("rb") as file:
        head = file.read(34)
        if len(head) < 34 or not head.startswith(INDEX_MAGIC):
            raise SetpointError(
                f"{where}.paths: {path} is not a Megatron index.\n"
                "Valid: the .idx file that was written with the .bin file next to it."
            )
        version, code, sequences, documents = struct.unpack("<QBQQ", head[9:])
        if version != 1 or code not in INDEX_TYPES:
            raise SetpointError(
                f"{where}.paths: {path} has version {version} and dtype {code}.\n"
                f"Valid: version 1, and integers: {', '.join(map(str, INDEX_TYPES))}."
            )
        if path.stat().st_size < len(head) + 12 * sequences + 8 * documents:
            raise SetpointError(
                f"{where}.paths: the index {path} is truncated.\nValid: a complete file."
            )
        lengths = np.fromfile(file, "<i4", sequences)
        pointers = np.fromfile(file, "<i8", sequences)
        ends = np.fromfile(file, "<i8", documents)
    dtype = np.dtype(INDEX_TYPES[code])
    starts = np.append(0, np.cumsum(lengths, dtype=np.int64))
    wrong = np.flatnonzero(pointers != starts[:-1] * dtype.itemsize)
    if len(wrong):
        number = int(wrong[0])
        raise SetpointError(
            f"{where}.paths: {path}: sequence {number:,} begins at byte {pointers[number]:,} but "
            f"the one before ends at {starts[number] * dtype.itemsize:,}.\n"
            "Valid: contiguous sequences."
        )
    # A document is one or several sequences.
    bounds = starts[ends[ends < len(starts)]]
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != starts[-1]:
        bounds = starts
    return TokenLayout(dtype, 0, int(starts[-1]), bounds)


class WrongIds(NamedTuple):
    """Error about ids that cannot be tokens, with the invalid field: paths or token_dtype."""

    field: str
    message: str
    valid: str = VALID_IDS


def find_wrong_ids(path: Path, layout: TokenLayout, size: int) -> WrongIds | None:
    """Look for ids outside the vocabulary, or halves of wider ids, at the start of a file.

    Arguments:
        size: vocabulary size.
    """
    count = min(layout.count, SAMPLED)
    ids = np.fromfile(path, layout.dtype, count, offset=layout.offset)
    data, width = ids.tobytes(), layout.dtype.itemsize
    wrong = np.flatnonzero((ids < 0) | (ids >= size))
    if len(wrong):
        first = int(wrong[0])
        message = beyond_vocabulary(path, int(ids[first]), first, size)
        for name in () if layout.says_dtype else ("uint32", "uint16", "uint8"):
            narrow = np.dtype(name).itemsize
            if (
                narrow < width
                and _ids(data, name).max() < size
                and not _wider(data, narrow, 1 << 63)
            ):
                message += f"; read as {name}, the first {len(data) // narrow:,} fit"
                return WrongIds("token_dtype", message, f"{name}; {VALID_IDS}")
        return WrongIds("paths", message)
    wide = None if layout.says_dtype else _wider(data, width, size)
    if wide is None:
        return None
    parts = np.dtype(wide).itemsize // width
    return WrongIds(
        "token_dtype",
        f"{layout.dtype.name} makes {parts} ids of each one in {path}: read as {wide}, the first "
        f"{len(ids) // parts:,} are tokens of the vocabulary ({size:,}), and the upper halves are "
        "0 or small",
        f"{wide}; a .npy file, which records the dtype, if the ids are correct.",
    )


def _ids(data: bytes, dtype: str) -> Ids:
    kind = np.dtype(dtype).newbyteorder("<")
    return np.frombuffer(data, kind, len(data) // kind.itemsize)


def _wider(data: bytes, width: int, size: int) -> str | None:
    """Detect that ids were written in a wider dtype; None: they were not.

    Of two adjacent ids, neither tends to be smaller, whereas the upper half of a wider id does. So
    a significant difference (one-sided Kolmogorov-Smirnov test) shows that ids are halves.

    Arguments:
        width: bytes per id as `data` is read.
        size: vocabulary size.
    """
    for dtype in ("int64", "uint32", "uint16"):
        itemsize = np.dtype(dtype).itemsize
        if itemsize <= width:
            break
        ids = _ids(data, "uint64" if dtype == "int64" else dtype)
        if not len(ids) or ids.max() >= size:
            continue
        half = 4 * itemsize  # bits
        lower, upper = np.sort(ids & ((1 << half) - 1)), np.sort(ids >> half)
        places = np.arange(1, len(ids) + 1)
        gap = int((places - np.searchsorted(lower, upper, "right")).max())
        if gap > LEAST_GAP * len(ids) and exp(-(gap**2) / len(ids)) < CHANCE:
            return dtype
    return None


def token_count(config: Tokens) -> int | None:
    """Number of tokens from file sizes and dtype; None if unknown."""
    listing = token_files(config, f"{HERE}.paths")
    if listing.errors or config.token_dtype is None or any(map(is_url, config.paths)):
        return None
    if prepared_folders(config, fetch=False):
        return None
    total = sum(os.stat(str(file)).st_size for file in listing.files.values())
    return total // np.dtype(config.token_dtype).itemsize


def file_problems(config: Tokens) -> Iterator[Problem]:
    """Find paths without files, damaged files, and files of another dtype."""
    listing = token_files(config, f"{HERE}.paths")
    errors = dict(listing.errors)
    for file in listing.files.values():
        if errors or not isinstance(file, Path):
            break
        try:
            with named_errors(file, f"{HERE}.paths"):
                layout_of(file, config.token_dtype, HERE)
        except SetpointError as error:
            errors[str(error).partition(": ")[0]] = error
    local = (Path(os.path.expanduser(path)) for path in config.paths if not is_url(path))
    folders = [path for path in local if is_prepared(path)]
    if config.token_dtype is not None and len(folders) == len(config.paths):
        yield Problem(
            "token_dtype",
            f"has no effect: the prepared data in {folders[0]} records its dtype",
            valid=("null",),
        )
    for folder in folders:
        try:
            verify(folder, read_manifest(folder), contents=False)
        except SetpointError as error:
            errors.setdefault(f"{HERE}.paths", SetpointError(f"{HERE}.paths: {error}"))
    yield from problems_of(errors)


@dataclass(frozen=True, slots=True)
class TokenizedRow:
    """The documents in a row; see `setpoint.data.document.Document`.

    Arguments:
        starts: (documents,) offset of each document.
    """

    tokens: npt.NDArray[np.int64]
    trained: npt.NDArray[np.bool_] | None
    starts: Sequence[int] = (0,)

    def documents(self, name: str) -> Iterator[Document]:
        """The documents, numbered if there are several."""
        for number, (start, end) in enumerate(pairwise([*self.starts, len(self.tokens)])):
            trained = None if self.trained is None else self.trained[start:end]
            numbered = f"{name}.{number}" if len(self.starts) > 1 else name
            yield Document(numbered, tokens=self.tokens[start:end], trained=trained)


def row_documents(row: FileRow, config: Text | HubDataset, where: str) -> Iterator[Document]:
    """The documents of a row: the text of a field, or one or more made of token ids.

    Arguments:
        where: dotted path of the section.

    Raises:
        SetpointError: a field is missing or not a text, tokens or score, or the fields of a
            tokenized row are inconsistent; names file and row.
    """
    field, field_path = config.field, f"{where}.field"
    score = None if config.score is None else score_at(row, config.score, f"{where}.score")
    if not holds_tokens(field):
        yield Document(row.name, text_at(row, field, field_path), score=score)
        return
    values = {TOKENS: value_at(row, field, field_path)}
    above = field.rpartition(".")[0]
    level = row.values if field in row.values or not above else value_at(row, above, field_path)
    if isinstance(level, Mapping):
        values |= {name: level[name] for name in BESIDE if name in level}
    try:
        tokenized = read_tokens(values, config.shifted_labels)
        if tokenized.trained is not None and not tokenized.trained.any():
            raise RowError(f"field 'labels' has only {IGNORED}, so no token would be trained on")
    except RowError as error:
        raise SetpointError(
            f"{field_path}: {row.place}: {error}.\nValid: a list of int in {field}, "
            f"optionally with {', '.join(BESIDE)} of the same length; exclude such rows."
        ) from error
    for document in tokenized.documents(row.name):
        yield replace(document, score=score)


def placed_documents(
    row: FileRow, config: Text | HubDataset, where: str, before: Place, after: Callable[[], Place]
) -> Iterator[Placed]:
    """The documents in a row of a stream, each with the position after it.

    Arguments:
        before: position of the row, of which `skip` documents have been read already.
        after: returns the position after the row.
    """
    documents = list(row_documents(row, config, where))
    for number, document in enumerate(documents[before.get("skip", 0) :], before.get("skip", 0)):
        last = number == len(documents) - 1
        yield document, after if last else partial(dict, before, skip=number + 1)


def read_tokens(row: Mapping[str, Any], shifted: bool = False) -> TokenizedRow:
    """Read `input_ids`, and `labels`, `attention_mask` and `position_ids` if present.

    Tokens with mask 0 are dropped; a restart of position ids begins a document.

    Arguments:
        shifted: whether labels are shifted: the label at each position is the next token.

    Raises:
        RowError: a field is not a list of int, has the wrong length, or contradicts the tokens.
    """
    tokens = _ints(row[TOKENS], TOKENS)
    labels, mask, positions = (
        None if row.get(name) is None else _ints(row[name], name, len(tokens)) for name in BESIDE
    )
    if shifted and labels is None:
        raise RowError("field 'labels' is missing, but shifted_labels = true needs it")
    places = np.arange(len(tokens))
    if mask is not None:
        if (wrong := np.flatnonzero((mask != 0) & (mask != 1))).size:
            i = int(wrong[0])
            raise RowError(f"field 'attention_mask' has {mask[i]} at position {i}; valid: 0, 1")
        places = np.flatnonzero(mask)
        tokens = tokens[places]
        labels = None if labels is None else labels[places]
        positions = None if positions is None else positions[places]
    if not len(tokens):
        raise RowError("field 'input_ids' contains no tokens")
    starts = [0] if positions is None else _starts(positions)
    if labels is None:
        return TokenizedRow(tokens, None, starts)
    trained = labels != IGNORED
    if shifted:
        return _shifted(tokens, labels, trained, starts, places)
    wrong = np.flatnonzero(trained & (labels != tokens))
    if len(wrong):
        i = int(wrong[0])
        raise RowError(
            f"field 'labels' has {labels[i]} at position {places[i]}, but input_ids has "
            f"{tokens[i]}; a label is the token itself (not the next one, as with shifted_labels = "
            f"true) or {IGNORED}"
        )
    return TokenizedRow(tokens, trained, starts)


def _shifted(
    tokens: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
    trained: npt.NDArray[np.bool_],
    starts: Sequence[int],
    places: npt.NDArray[np.intp],
) -> TokenizedRow:
    """Documents with shifted labels; the last token may be only a label.

    Arguments:
        places: positions of the tokens in the row, for messages.

    Raises:
        RowError: a label differs from the next token.
    """
    parts: list[npt.NDArray[np.int64]] = []
    masks: list[npt.NDArray[np.bool_]] = []
    for start, end in pairwise([*starts, len(tokens)]):
        inner = slice(start, end - 1)
        wrong = np.flatnonzero(trained[inner] & (labels[inner] != tokens[start + 1 : end]))
        if len(wrong):
            i = start + int(wrong[0])
            raise RowError(
                f"field 'labels' has {labels[i]} at position {places[i]}, but input_ids has "
                f"{tokens[i + 1]} at the next position; with shifted_labels = true a label is the "
                f"next token or {IGNORED}"
            )
        last = labels[end - 1 : end][trained[end - 1 : end]]  # the target behind the last token
        parts.append(np.concatenate([tokens[start:end], last]))
        masks.append(np.concatenate([[False], trained[inner], np.ones(len(last), np.bool_)]))
    begins = np.cumsum([0, *map(len, parts[:-1])]).tolist()
    return TokenizedRow(np.concatenate(parts), np.concatenate(masks), begins)


def _starts(positions: npt.NDArray[np.int64]) -> list[int]:
    """(documents,) offsets at which position ids restart."""
    expected = np.append(0, positions[:-1] + 1)
    wrong = np.flatnonzero((positions != expected) & (positions != 0))
    if len(wrong):
        i = int(wrong[0])
        restart = ", or 0 to begin another document" if i else ""
        raise RowError(
            f"field 'position_ids' has {positions[i]} at position {i}; valid: "
            f"{expected[i]}{restart}"
        )
    return np.flatnonzero(positions == 0).tolist()


def _ints(value: Any, field: str, length: int | None = None) -> npt.NDArray[np.int64]:
    if isinstance(value, str):  # as in the cells of a CSV file
        with suppress(ValueError):  # what it is then is said below
            value = json.loads(value)
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
        raise wrong_kind(field, "a list of int", value)
    array = np.zeros(0, np.int64)
    if len(value):
        with suppress(ValueError, OverflowError):
            array = np.asarray(value)
        # A bool among numbers becomes one of them.
        if (
            len(array) != len(value)
            or array.ndim != 1
            or array.dtype.kind not in "iu"
            or (bool in set(map(type, value)))
        ):
            is_int = (isinstance(x, int | np.integer) and not isinstance(x, bool) for x in value)
            wrong = next((x for x, fits in zip(value, is_int, strict=True) if not fits), value)
            raise RowError(f"field {field!r} must be a list of int, but contains {wrong!r}")
    if length is not None and len(value) != length:
        raise RowError(f"field {field!r} has {len(value)} entries, but input_ids has {length}")
    return array.astype(np.int64)
