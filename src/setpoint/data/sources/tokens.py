"""Token ids that were made elsewhere: token files, prepared folders, and rows of input_ids."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import exp
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from setpoint.config import Problem, SetpointError
from setpoint.data.document import Document, Place, Placed
from setpoint.data.prepared import MANIFEST, is_prepared, read_facts
from setpoint.data.sources.config import Tokens
from setpoint.data.sources.files import (
    HERE,
    File,
    Found,
    find_files,
    inputs_of,
    named_errors,
    problems_of,
)
from setpoint.data.sources.records import (
    BESIDE,
    TOKENS,
    Row,
    RowError,
    as_utf8,
    holds_tokens,
    kind_of,
    text_at,
    value_at,
)
from setpoint.data.store import stored_documents
from setpoint.data.tokenizers.tokenizer import Tokenizer
from setpoint.data.tokenizers.vocabulary import beyond_vocabulary
from setpoint.hub.fetch import fetch_files, is_url, split_hub_id

Ids = npt.NDArray[np.integer[Any]]
CHUNK = 1 << 22  # tokens that are looked at, at a time


class TokensSource:
    """Documents from files of token ids, which are mapped into memory.

    Arguments:
        where: the path of `config` in the job, for messages.
    """

    def __init__(self, config: Tokens, *, where: str = "data.sources") -> None:
        self.config = config
        self.where = where

    def tokenized(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """The documents: as an index says, or divided at separators, or a file each.

        Prepared data has its own.

        Separators at the ends of a document are left out, as they stand between documents anyway.
        Without an id that separates, nothing is divided or left out.

        Raises:
            SetpointError: a file is missing, damaged, empty or of another dtype, or holds an id
                that is none of the tokenizer's; with file and position.
        """
        for folder in prepared_folders(self.config, f"{self.where}.paths"):
            try:
                yield from stored_documents(folder, self.config.name, tokenizer)
            except SetpointError as error:
                raise SetpointError(f"{self.where}.paths: {error}") from error
        separator = self.config.separator
        if separator is None and getattr(tokenizer, "separates", True):
            separator = tokenizer.separator
        for name, file in self._files().items():
            ids, bounds = self._mapped(Path(str(file)), tokenizer.vocab_size)
            found = self._separators(ids, separator, tokenizer, file)
            if separator is None:
                parts = list(pairwise(bounds or (0, len(ids))))
            elif bounds is not None:
                parts = [_bare(ids, *ends, separator) for ends in pairwise(bounds)]
            else:
                ends = [-1, *found, len(ids)]
                parts = [(start + 1, end) for start, end in pairwise(ends)]
            parts = [(start, end) for start, end in parts if start < end]
            if not parts:
                raise SetpointError(
                    f"{self.where}.paths: {file} holds no tokens but separators.\n"
                    "Valid: a file with tokens; leave this one out."
                )
            for number, (start, end) in enumerate(parts):
                numbered = f"{name}#{number:06d}" if len(parts) > 1 else name
                yield Document(numbered, tokens=ids[start:end])

    def inputs(self) -> Iterator[str]:
        """See `inputs_of`."""
        yield from prepared_inputs(self.config, f"{self.where}.paths")
        yield from inputs_of(self._files())

    def _files(self) -> dict[str, File]:
        return token_files(self.config, f"{self.where}.paths", fetch=True).checked()

    def _mapped(self, path: Path, size: int) -> tuple[Ids, Sequence[int] | None]:
        """Tokens of a file, and where its documents begin, where it says."""
        dtype = self.config.token_dtype
        with named_errors(path, f"{self.where}.paths"):
            if path.suffix == ".npy":
                check_npy(path, dtype, self.where)
                ids, bounds = np.load(path, mmap_mode="r", allow_pickle=False), None
            else:
                layout = layout_of(path, dtype, self.where)
                bounds, kind = layout.documents, np.dtype(layout.dtype).newbyteorder("<")
                shape = (layout.count,)
                if not layout.count:
                    raise SetpointError(
                        f"{self.where}.paths: {path} is empty.\nValid: a file with tokens."
                    )
                ids = np.memmap(path, kind, mode="r", offset=layout.offset, shape=shape)
            if wrong := find_wrong_ids(path, dtype, self.where, size):
                raise self._error(wrong)
        return cast(Ids, np.asarray(ids)), bounds

    def _separators(
        self, ids: Ids, separator: int | None, tokenizer: Tokenizer, file: object
    ) -> list[int]:
        """Where separators stand; each token is looked at on the way."""
        found: list[int] = []
        for start in range(0, len(ids), CHUNK):
            piece = ids[start : start + CHUNK]
            wrong = np.flatnonzero((piece < 0) | (piece >= tokenizer.vocab_size))
            if len(wrong):
                at = int(wrong[0])
                token, position = int(piece[at]), start + at
                message = beyond_vocabulary(file, token, position, tokenizer.vocab_size)
                raise self._error(WrongIds("paths", message))
            if separator is not None:
                found += (np.flatnonzero(piece == separator) + start).tolist()
        return found

    def _error(self, wrong: WrongIds) -> SetpointError:
        return SetpointError(f"{self.where}.{wrong.field}: {wrong.message}.\nValid: {wrong.valid}")


def _bare(ids: Ids, start: int, end: int, separator: int) -> tuple[int, int]:
    """The ends of a document without separators at them."""
    while start < end and ids[start] == separator:
        start += 1
    while start < end and ids[end - 1] == separator:
        end -= 1
    return start, end


SUFFIXES = (".npy", ".bin")
INDEX = ".idx"
WIDTHS = {"uint8": 1, "uint16": 2, "uint32": 4, "int32": 4, "int64": 8}
# First number of 256 32-bit ones before the tokens: modded-nanogpt's and llm.c's files. The second
# is a version, the third the number of tokens.
MAGIC = {20240520: "uint16", 20240801: "uint32"}
HEADER = 256 * 4
INDEX_MAGIC = b"MMIDIDX\x00\x00"
NPY_MAGIC = b"\x93NUMPY"
LONG_INDEX = 1 << 20  # bytes of an index from which only training reads it
# Megatron's codes; 6 and 7 are floating point.
_HUB = re.compile(
    r"hf://datasets/(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w.%-]+))?"
    r"(/(?P<inside>.*?))?/*"
)
_NPY_DTYPE = re.compile(r"[<>|=][ui](?P<width>[1248])")
CODES = {"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
         "int8": "b", "int16": "h", "int32": "i", "int64": "q"}  # fmt: skip
SAMPLED = 1 << 16  # tokens of a file that are looked at before training
# Of two distributions, above which they are those of halves; and the probability of that by chance.
LEAST_GAP, CHANCE = 0.1, 1e-3
VALID_IDS = (
    "the tokenizer that made the tokens, and their dtype; tokenizer = ids where there is none, by "
    "model.vocab_size."
)
INDEX_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


@dataclass(frozen=True, slots=True)
class Layout:
    """How tokens lie in a file.

    Arguments:
        offset: bytes before the first token.
        documents: (documents + 1,) where each begins, in tokens; None: the file does not say.
        big_endian: whether the first byte of a number is its highest.
    """

    dtype: str
    offset: int
    count: int
    documents: array[int] | None = None
    big_endian: bool = False


def token_files(config: Tokens, field: str, *, fetch: bool = False) -> Found:
    """The files of a source but for those of prepared data.

    Arguments:
        field: dotted path of `paths`, for messages.
        fetch: whether files of the hub are downloaded, where they are not in its cache; where not,
            they are left out.
    """
    paths = [_here(path, f"{field}.{at}", fetch) for at, path in enumerate(config.paths)]
    wanted = {at: path for at, path in enumerate(paths) if path and not _is_folder(path)}
    if not wanted:
        return Found({}, {})
    found = find_files(wanted, name=config.name, field=field, wanted=_is_wanted, remote=False)
    for at, path in wanted.items():
        if is_url(path) and f"{field}.{at}" not in found.errors:
            found.errors[f"{field}.{at}"] = SetpointError(
                f"{field}.{at}: '{path}' lies elsewhere, and token files are mapped into "
                "memory.\nValid: a path on this machine, to which they are copied; "
                "hf://datasets/owner/name, which is downloaded."
            )
    parents = {file.parent for file in found.files.values() if isinstance(file, Path)}
    inside = sorted(str(parent) for parent in parents if is_prepared(parent))
    if inside and field not in found.errors:
        found.errors[field] = SetpointError(
            f"{field}: {inside[0]} in it is prepared data.\n"
            f"Valid: that folder itself, paths = ['{inside[0]}']."
        )
    wrong = [file for file in found.files.values() if not _is_wanted(file)]
    if wrong and field not in found.errors:
        found.errors[field] = SetpointError(
            f"{field}: {wrong[0]} is no file of tokens.\n"
            f"Valid: {' and '.join(SUFFIXES)} files; of Megatron's pairs the .bin."
        )
    return found


def names_token_files(config: Tokens) -> bool:
    """Whether paths lead to prepared data, or to token files alone; none is opened."""
    if any(map(_is_folder, config.paths)):
        return True
    found = find_files(config.paths, name=config.name, field="paths", remote=False)
    suffixes = {file.suffix for file in found.files.values()}
    return not found.errors and bool(suffixes) and suffixes <= {*SUFFIXES, INDEX}


def prepared_folders(
    config: Tokens, field: str = f"{HERE}.paths", *, fetch: bool = True
) -> list[Path]:
    """Those of the paths that hold prepared data; see `token_files`.

    Raises:
        SetpointError: one cannot be downloaded.
    """
    found = [_here(path, f"{field}.{at}", fetch) for at, path in enumerate(config.paths)]
    return [Path(path) for path in found if path and _is_folder(path)]


def prepared_inputs(config: Tokens, field: str) -> Iterator[str]:
    """A line for each of `prepared_folders`, as `setpoint.data.sources.files.inputs_of` has it."""
    for folder in prepared_folders(config, field):
        text = (folder / MANIFEST).read_bytes()
        size = sum(size for size, _ in json.loads(text)["files"].values())
        yield f"{config.name}/{folder.name}\t{size} {hashlib.sha256(text).hexdigest()}"


def _here(path: str, where: str, fetch: bool) -> str | None:
    """A path on this machine; of one on the hub in its cache, None where it is not there.

    Raises:
        SetpointError: it cannot be downloaded.
    """
    parts = _HUB.fullmatch(path)
    revision = unquote(parts["revision"] or "") if parts else ""
    repository = parts["name"] + (f"@{revision}" if revision else "") if parts else ""
    if parts is None or split_hub_id(repository) is None:
        return os.path.expanduser(path)
    inside = parts["inside"] or ""
    patterns = [inside, f"{inside}/*", f"{inside.removesuffix('.bin')}.idx"] if inside else ["*"]
    try:
        folder = fetch_files(
            repository,
            patterns,
            instead="A folder on this machine works without the hub.",
            kind="dataset",
            cached=not fetch,
        )
    except SetpointError as error:
        if not fetch:
            return None
        raise SetpointError(f"{where}: {error}") from error
    found = str(folder / inside)
    # Of the cache it is not known whether it has all files, but for those of a manifest.
    return found if fetch or _is_folder(found) else None


def _is_folder(path: str) -> bool:
    return is_prepared(Path(path))


def _is_wanted(file: File) -> bool:
    return file.suffix in SUFFIXES


def layout_of(path: Path, dtype: str | None, where: str) -> Layout:
    """How tokens lie in a `.bin` file: as its index or header says, or all of it.

    Arguments:
        dtype: as the configuration says it.
        where: dotted path of the section, for messages.

    Raises:
        SetpointError: neither says the dtype, both do and differ, or the file is cut short.
    """
    size = path.stat().st_size
    index = path.with_suffix(INDEX)
    found = _indexed(index, f"{where}.paths") if index.is_file() else _headed(path, size)
    if found is None:
        if dtype is None:
            raise SetpointError(
                f"{where}.token_dtype: {path} has neither a header nor an .idx file beside it "
                "that says the dtype of its tokens.\n"
                "Valid: uint16 for nanoGPT's files, or what wrote them."
            )
        if size % WIDTHS[dtype]:
            raise SetpointError(
                f"{where}.paths: {path} has {size:,} bytes, which is no multiple of {dtype}'s "
                f"{WIDTHS[dtype]}: it is cut short, or of another dtype.\nValid: a whole file."
            )
        return Layout(dtype, 0, size // WIDTHS[dtype])
    if dtype is not None and dtype != found.dtype:
        raise SetpointError(
            f"{where}.token_dtype: {dtype} is not what {path} says, {found.dtype}.\n"
            f"Valid: null, or {found.dtype}."
        )
    have = (size - found.offset) // _width(found.dtype)
    if have < found.count:
        raise SetpointError(
            f"{where}.paths: {path} is cut short: it holds {have:,} of the {found.count:,} tokens "
            f"that its {'index' if index.is_file() else 'header'} says.\nValid: a whole file."
        )
    return found


class WrongIds(NamedTuple):
    """Ids of a file that cannot be tokens.

    Arguments:
        field: of the source, "paths" or "token_dtype".
        valid: what would be valid.
    """

    field: str
    message: str
    valid: str = VALID_IDS


def find_wrong_ids(path: Path, dtype: str | None, where: str, size: int) -> WrongIds | None:
    """Look for ids that are no tokens, or parts of wider ids, among the first ones of a file.

    Arguments:
        size: of the vocabulary.

    Raises:
        SetpointError: the file cannot be read; see `layout_of` and `check_npy`.
    """
    look = check_npy if path.suffix == ".npy" else layout_of
    layout = look(path, dtype, where)
    width = _width(layout.dtype)
    with path.open("rb") as file:
        file.seek(layout.offset)
        data = file.read(min(layout.count, SAMPLED) * width)
    ids = _ids(data, layout.dtype, layout.big_endian)
    if not ids:
        return None
    # Neither a .npy file, nor a header or index, which say the dtype.
    by_field = path.suffix == ".bin" and not layout.offset and layout.documents is None
    if max(ids) >= size or min(ids) < 0:
        at, token = next((at, token) for at, token in enumerate(ids) if not 0 <= token < size)
        message = beyond_vocabulary(path, token, at, size)
        narrow = next((name for name in ("uint32", "uint16", "uint8")
                       if WIDTHS[name] < width and max(_ids(data, name)) < size
                       and _wider(data, WIDTHS[name], 1 << 63) is None), None)  # fmt: skip
        if narrow is None or not by_field:
            return WrongIds("paths", message)
        message = f"{message}; read as {narrow}, the first {len(data) // WIDTHS[narrow]:,} fit"
        return WrongIds("token_dtype", message, f"{narrow}; {VALID_IDS}")
    wide = _wider(data, width, size) if by_field else None
    if wide is None:
        return None
    return WrongIds(
        "token_dtype",
        f"{layout.dtype} makes {WIDTHS[wide] // width} ids of each one in {path}: read as {wide}, "
        f"the first {len(data) // WIDTHS[wide]:,} are tokens of the vocabulary ({size:,}), and the "
        "upper halves are 0 or small",
        f"{wide}; a .npy file, which says the dtype, if the ids are as they should be.",
    )


def _ids(data: bytes, dtype: str, big_endian: bool = False) -> array[int]:
    ids = array(CODES[dtype])
    ids.frombytes(data[: len(data) // ids.itemsize * ids.itemsize])
    if big_endian != (sys.byteorder == "big"):
        ids.byteswap()
    return ids


def _wider(data: bytes, width: int, size: int) -> str | None:
    """The dtype, wider than what `data` is read as, that it was written in; None: not wider.

    In a pair of ids neither place has smaller ones than the other. In a number of the vocabulary
    the upper half has, so that a difference beyond chance (Kolmogorov and Smirnov's, one-sided)
    tells that ids, or two, four of them, are halves.

    Arguments:
        size: of the vocabulary.
    """
    for dtype in ("int64", "uint32", "uint16"):
        if WIDTHS[dtype] <= width:
            break
        whole = _ids(data, "uint64" if dtype == "int64" else dtype)
        if not whole or max(whole) >= size:
            continue
        half = 4 * WIDTHS[dtype]  # bits
        lower = sorted(number & ((1 << half) - 1) for number in whole)
        upper = sorted(number >> half for number in whole)
        gap = max(place - bisect_right(lower, number) for place, number in enumerate(upper, 1))
        if gap > LEAST_GAP * len(whole) and exp(-(gap**2) / len(whole)) < CHANCE:
            return dtype
    return None


def check_npy(path: Path, dtype: str | None, where: str) -> Layout:
    """Look at the header of a `.npy` file.

    Returns:
        how its tokens lie.

    Raises:
        SetpointError: it is no row of whole numbers, of another dtype, or cut short.
    """
    with path.open("rb") as file:
        start = file.read(8)
        wide = start[6:7] >= b"\x02"
        length = file.read(4 if wide else 2)
        if not start.startswith(NPY_MAGIC) or len(length) != (4 if wide else 2):
            raise SetpointError(f"{where}.paths: {path} is no .npy file.\nValid: a whole file.")
        header = file.read(struct.unpack("<I" if wide else "<H", length)[0]).decode("latin-1")
        offset = file.tell()
    try:
        facts = ast.literal_eval(header.strip())
        kind, shape = facts["descr"], tuple(int(size) for size in facts["shape"])
    except (ValueError, SyntaxError, LookupError, TypeError):
        raise SetpointError(
            f"{where}.paths: the header of {path} cannot be read.\nValid: a whole file."
        ) from None
    found = _NPY_DTYPE.fullmatch(kind) if isinstance(kind, str) else None
    if found is None or len(shape) != 1 or not shape[0]:
        shown = _dtype_name(kind) if isinstance(kind, str) else "records"
        raise SetpointError(
            f"{where}.paths: {path} holds an array of {shown} with shape {shape}.\n"
            "Valid: token ids in a row: whole numbers, one dimension, not empty."
        )
    name, width = _dtype_name(kind), int(found["width"])
    if dtype is not None and name != dtype:
        raise SetpointError(
            f"{where}.token_dtype: {dtype} is not what {path} says, {name}.\n"
            f"Valid: null, or {name}."
        )
    have = (path.stat().st_size - offset) // width
    if have < shape[0]:
        raise SetpointError(
            f"{where}.paths: {path} is cut short: it holds {have:,} of the {shape[0]:,} tokens "
            "that its header says.\nValid: a whole file."
        )
    return Layout(name, offset, shape[0], big_endian=kind.startswith(">"))


def _dtype_name(kind: str) -> str:
    """Name of the dtype that a header describes, such as uint16 for <u2."""
    name = {"u": "uint", "i": "int", "f": "float", "c": "complex"}.get(kind[1:2])
    return f"{name}{8 * int(kind[2:])}" if name and kind[2:].isdigit() else kind


def _width(dtype: str) -> int:
    return int("".join(sign for sign in dtype if sign.isdigit())) // 8


def _headed(path: Path, size: int) -> Layout | None:
    if size < HEADER:
        return None
    with path.open("rb") as file:
        magic, _, count = struct.unpack("<3i", file.read(12))
    return Layout(MAGIC[magic], HEADER, count) if magic in MAGIC and count > 0 else None


def _indexed(path: Path, where: str) -> Layout:
    """The layout that Megatron's index says."""
    with path.open("rb") as file:
        head = file.read(34)
        if len(head) < 34 or not head.startswith(INDEX_MAGIC):
            raise SetpointError(
                f"{where}: {path} is no index of Megatron's.\n"
                "Valid: the .idx file that was written with the .bin file beside it."
            )
        version, code, sequences, documents = struct.unpack("<QBQQ", head[9:])
        lengths, pointers, ends = (
            _index_numbers(file.read(count * width), kind, count, path, where)
            for kind, width, count in (
                ("i", 4, sequences),
                ("q", 8, sequences),
                ("q", 8, documents),
            )
        )
    if version != 1 or code not in INDEX_TYPES:
        raise SetpointError(
            f"{where}: {path} says version {version} and dtype {code}.\n"
            f"Valid: version 1, and whole numbers: {', '.join(map(str, INDEX_TYPES))}."
        )
    starts, total = array("q", [0]), 0
    width = _width(INDEX_TYPES[code])
    for number, length in enumerate(lengths):
        if pointers[number] != total * width:
            raise SetpointError(
                f"{where}: {path}: sequence {number:,} begins at byte {pointers[number]:,} and not "
                f"where the one before ends, {total * width:,}.\nValid: sequences in a row."
            )
        total += length
        starts.append(total)
    # A document is one or several sequences.
    found = array("q", (starts[end] for end in ends if end < len(starts)))
    if not found or found[0] != 0 or found[-1] != total:
        found = starts
    return Layout(INDEX_TYPES[code], 0, total, found)


def _index_numbers(data: bytes, kind: str, count: int, path: Path, where: str) -> array[int]:
    numbers = array(kind)
    if len(data) < count * numbers.itemsize:
        raise SetpointError(f"{where}: the index {path} is cut short.\nValid: a whole file.")
    numbers.frombytes(data)
    return numbers


def token_count(config: Tokens) -> int | None:
    """Tokens of the files as far as their sizes and the dtype say it."""
    found = token_files(config, f"{HERE}.paths")
    if found.errors or config.token_dtype is None or any(map(is_url, config.paths)):
        return None
    if prepared_folders(config, fetch=False):
        return None
    return (
        sum(os.stat(str(file)).st_size for file in found.files.values())
        // WIDTHS[config.token_dtype]
    )


def file_problems(config: Tokens) -> Iterator[Problem]:
    """Find paths that lead to no files, and files that are not what they should be."""
    found = token_files(config, f"{HERE}.paths")
    errors = dict(found.errors)
    for file in found.files.values():
        if isinstance(file, Path) and not errors:
            index = file.with_suffix(INDEX)
            try:
                layout = None
                if file.suffix == ".npy":
                    layout = check_npy(file, config.token_dtype, HERE)
                elif not index.is_file() or index.stat().st_size < LONG_INDEX:
                    layout = layout_of(file, config.token_dtype, HERE)
                if layout is not None and not layout.count:
                    raise SetpointError(
                        f"{HERE}.paths: {file} is empty.\nValid: a file with tokens."
                    )
            except SetpointError as error:
                errors[str(error).partition(": ")[0]] = error
            except OSError as error:
                reason = error.strerror or type(error).__name__
                errors[f"{HERE}.paths"] = SetpointError(
                    f"{HERE}.paths: cannot read {file}: {reason}.\n"
                    "Valid: a file this user may read."
                )
    here = [os.path.expanduser(path) for path in config.paths if not is_url(path)]
    folders = [Path(path) for path in here if _is_folder(path)]
    if config.token_dtype is not None and len(folders) == len(config.paths):
        yield Problem(
            "token_dtype",
            f"has no effect: the prepared data in {folders[0]} says its dtype",
            valid=("null",),
        )
    for folder in folders:
        reason = _damage_of(folder)
        if reason:
            errors.setdefault(
                f"{HERE}.paths",
                SetpointError(
                    f"{HERE}.paths: the prepared data in {folder} is damaged: {reason}.\n"
                    "Valid: a folder as `setpoint data prepare` left it; prepare it again."
                ),
            )
    yield from problems_of(errors)


def _damage_of(folder: Path) -> str:
    """What is wrong with prepared data, as far as the sizes of its files say it."""
    facts = read_facts(folder)
    if facts is None:
        return f"{MANIFEST} cannot be read"
    for name, size in facts.sizes.items():
        try:
            have = (folder / name).stat().st_size
        except OSError as error:
            return f"{name}: {error.strerror}"
        if have != size:
            return f"{name} has {have:,} bytes, and had {size:,}"
    return ""


IGNORED = -100  # the label of a token that is no target, as PyTorch has it


@dataclass(frozen=True, slots=True)
class TokenizedRow:
    """The documents of a row, one after the other; see `setpoint.data.document.Document`.

    Arguments:
        starts: (documents,) the first token of each.
    """

    tokens: npt.NDArray[np.int64]
    trained: npt.NDArray[np.bool_] | None
    starts: Sequence[int] = (0,)

    def documents(self, name: str) -> Iterator[Document]:
        """The documents; several are numbered."""
        ends = [*self.starts[1:], len(self.tokens)]
        for number, (start, end) in enumerate(zip(self.starts, ends, strict=True)):
            trained = None if self.trained is None else self.trained[start:end]
            numbered = f"{name}.{number}" if len(ends) > 1 else name
            yield Document(numbered, tokens=self.tokens[start:end], trained=trained)


def row_documents(row: Row, field: str, where: str, shifted: bool) -> Iterator[Document]:
    """The document of a row: the text of a field, or tokens, of which a row may hold several.

    Arguments:
        shifted: see `read_tokens`.
        where: dotted path of the field of the configuration that names it.

    Raises:
        SetpointError: the row has no such field, or no text or tokens there, or what stands beside
            the tokens does not fit; with file and row.
    """
    if not holds_tokens(field):
        yield Document(row.name, as_utf8(text_at(row, field, where), row, where))
        return
    values = {TOKENS: value_at(row, field, where)}
    above = field.rpartition(".")[0]
    level = row.values if field in row.values or not above else value_at(row, above, where)
    if isinstance(level, Mapping):
        values |= {name: level[name] for name in BESIDE if name in level}
    try:
        found = read_tokens(values, shifted)
        if found.trained is not None and not found.trained.any():
            raise RowError(f"field 'labels': all are {IGNORED}, so nothing in it is trained on")
    except RowError as error:
        raise SetpointError(
            f"{where}: {row.place}: {error}.\nValid: a list of int in {field}, and beside it "
            f"{', '.join(BESIDE)} of the same length; leave such rows out."
        ) from error
    yield from found.documents(row.name)


def placed_documents(
    row: Row, field: str, where: str, shifted: bool, before: Place, behind: Callable[[], Place]
) -> Iterator[Placed]:
    """The documents of a row of a stream, with the place behind each.

    Arguments:
        before: the place of the row, from where on `skip` of its documents were read already.
        behind: tells the place behind the row.

    Raises:
        SetpointError: see `row_documents`.
    """
    documents = list(row_documents(row, field, where, shifted))
    for number, document in enumerate(documents[before.get("skip", 0) :], before.get("skip", 0)):
        last = number == len(documents) - 1
        yield document, behind if last else partial(dict, before, skip=number + 1)


def read_tokens(row: Mapping[str, Any], shifted: bool = False) -> TokenizedRow:
    """Read `input_ids`, and `labels`, `attention_mask` and `position_ids` where there are some.

    Where the mask is 0 a token is left out; positions that begin again begin a document.

    Arguments:
        shifted: whether the label at each place is the next token, and not the token itself.

    Raises:
        RowError: one of them is no list of int, or of another length, or does not fit the tokens.
    """
    tokens = _numbers(row[TOKENS], TOKENS)
    beside = {name: _numbers(row[name], name, len(tokens)) for name in BESIDE
              if row.get(name) is not None}  # fmt: skip
    labels, mask, positions = (beside.get(name) for name in BESIDE)
    if mask is not None and (wrong := np.flatnonzero((mask != 0) & (mask != 1))).size:
        at = int(wrong[0])
        raise RowError(f"field 'attention_mask': place {at} has {mask[at]}, and 0 or 1 is needed")
    if shifted:
        if labels is None:
            raise RowError("field 'labels': is missing, and shifted_labels = true reads it")
        return _shifted(tokens, labels, mask, positions)
    trained = None
    if labels is not None:
        trained = labels != IGNORED
        wrong = np.flatnonzero(trained & (labels != tokens))
        if len(wrong):
            at = int(wrong[0])
            raise RowError(
                f"field 'labels': place {at} has {labels[at]}, and input_ids has {tokens[at]} "
                f"there; a label is the token itself (not the next one, as it is with "
                f"shifted_labels = true) or {IGNORED}"
            )
    if mask is not None:
        kept = mask != 0
        tokens = tokens[kept]
        trained = None if trained is None else trained[kept]
        positions = None if positions is None else positions[kept]
    if not len(tokens):
        raise RowError("field 'input_ids': holds no token")
    return TokenizedRow(tokens, trained, (0,) if positions is None else _starts(positions))


def _shifted(
    tokens: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
    mask: npt.NDArray[np.int64] | None,
    positions: npt.NDArray[np.int64] | None,
) -> TokenizedRow:
    """Documents whose labels are next tokens, the last of which may stand among the labels alone.

    Raises:
        RowError: a label is another token than the next one.
    """
    if mask is not None:
        kept = mask != 0
        tokens, labels = tokens[kept], labels[kept]
        positions = None if positions is None else positions[kept]
    if not len(tokens):
        raise RowError("field 'input_ids': holds no token")
    starts = [0] if positions is None else _starts(positions)
    parts: list[npt.NDArray[np.int64]] = []
    masks: list[npt.NDArray[np.bool_]] = []
    for start, end in pairwise([*starts, len(tokens)]):
        trained = labels[start:end] != IGNORED
        wrong = np.flatnonzero(trained[:-1] & (labels[start : end - 1] != tokens[start + 1 : end]))
        if len(wrong):
            at = start + int(wrong[0])
            raise RowError(
                f"field 'labels': place {at} has {labels[at]}, and input_ids has {tokens[at + 1]} "
                f"at the next place; with shifted_labels = true a label is the next token or "
                f"{IGNORED}"
            )
        last = labels[end - 1 : end][trained[-1:]]  # the target behind the last token, if any
        parts += [tokens[start:end], last]
        masks += [np.zeros(1, np.bool_), trained[: end - start - 1], np.ones(len(last), np.bool_)]
    sizes = [len(a) + len(b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    begins = np.cumsum([0, *sizes[:-1]]).tolist()
    return TokenizedRow(np.concatenate(parts), np.concatenate(masks), begins)


def _starts(positions: npt.NDArray[np.int64]) -> list[int]:
    """Where documents begin: where positions do."""
    expected = np.append(0, positions[:-1] + 1)
    wrong = np.flatnonzero((positions != expected) & (positions != 0))
    if len(wrong):
        at = int(wrong[0])
        raise RowError(
            f"field 'position_ids': {positions[at]} where {expected[at]} follows, or 0 with which "
            "another document begins"
        )
    return np.flatnonzero(positions == 0).tolist()


def _numbers(found: Any, field: str, length: int | None = None) -> npt.NDArray[np.int64]:
    if isinstance(found, str):  # as in the cells of a CSV file
        with suppress(ValueError):  # what it is then is said below
            found = json.loads(found)
    if not isinstance(found, Sequence | np.ndarray) or isinstance(found, str):
        raise RowError(f"field {field!r}: a list of int is needed, and it is {kind_of(found)}")
    if not _are_ints(found):
        wrong = next((x for x in found if isinstance(x, bool) or not _is_int(x)), found)
        raise RowError(f"field {field!r}: a list of int is needed, and {wrong!r} is in it")
    if length is not None and len(found) != length:
        raise RowError(f"field {field!r}: has {len(found)} entries, and input_ids has {length}")
    return np.array(found, dtype=np.int64)


def _are_ints(found: Any) -> bool:
    if not len(found):
        return True
    try:
        array = np.asarray(found)
    except (ValueError, OverflowError):
        return False
    # A bool among numbers becomes one of them.
    return array.ndim == 1 and array.dtype.kind in "iu" and bool not in set(map(type, found))


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer)
