"""Files of token ids as other systems write them: their layouts, read without numpy."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from setpoint.config import Problem, SetpointError
from setpoint.data.prepared.names import MANIFEST, is_prepared, read_facts
from setpoint.data.sources.config import Tokens
from setpoint.data.sources.files import HERE, File, Found, find_files, problems_of
from setpoint.hub.fetch import fetch_files, split_hub_id
from setpoint.hub.urls import is_url

SUFFIXES = (".npy", ".bin")
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
VALID_IDS = (
    "the tokenizer that made the tokens, and their dtype; tokenizer = ids where there is none, by "
    "model.vocab_size."
)
INDEX_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


@dataclass(frozen=True, slots=True)
class Layout:
    """How tokens lie in a `.bin` file.

    Arguments:
        offset: bytes before the first token.
        documents: (documents + 1,) where each begins, in tokens; None: the file does not say.
    """

    dtype: str
    offset: int
    count: int
    documents: array[int] | None = None


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
    index = path.with_suffix(".idx")
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


def beyond_vocabulary(file: object, token: int, position: int, size: int) -> str:
    """What is said of an id that is no token."""
    return (
        f"{file} holds the token {token} at position {position:,}, and the vocabulary of tokenizer "
        f"is {size:,}"
    )


def first_beyond(path: Path, dtype: str | None, where: str, size: int) -> str | None:
    """Find an id that is no token among the first ones of a file, without numpy.

    Raises:
        SetpointError: the file cannot be read; see `layout_of` and `check_npy`.
    """
    look = check_npy if path.suffix == ".npy" else layout_of
    layout = look(path, dtype, where)
    ids = array(CODES[layout.dtype])
    with path.open("rb") as file:
        file.seek(layout.offset)
        ids.frombytes(file.read(min(layout.count, SAMPLED) * ids.itemsize))
    if sys.byteorder == "big":
        ids.byteswap()
    if not ids or (max(ids) < size and min(ids) >= 0):
        return None
    at, token = next((at, token) for at, token in enumerate(ids) if not 0 <= token < size)
    return beyond_vocabulary(path, token, at, size)


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
    return Layout(name, offset, shape[0])


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
            _numbers(file.read(count * width), kind, count, path, where)
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


def _numbers(data: bytes, kind: str, count: int, path: Path, where: str) -> array[int]:
    numbers = array(kind)
    if len(data) < count * numbers.itemsize:
        raise SetpointError(f"{where}: the index {path} is cut short.\nValid: a whole file.")
    numbers.frombytes(data)
    return numbers


def most_tokens(config: Tokens) -> int | None:
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
            index = file.with_suffix(".idx")
            try:
                if file.suffix == ".npy":
                    check_npy(file, config.token_dtype, HERE)
                elif not index.is_file() or index.stat().st_size < LONG_INDEX:
                    layout_of(file, config.token_dtype, HERE)
            except SetpointError as error:
                errors[str(error).partition(": ")[0]] = error
            except OSError as error:
                reason = error.strerror or type(error).__name__
                errors[f"{HERE}.paths"] = SetpointError(
                    f"{HERE}.paths: cannot read {file}: {reason}.\n"
                    "Valid: a file this user may read."
                )
    here = [os.path.expanduser(path) for path in config.paths if not is_url(path)]
    for folder in (Path(path) for path in here if _is_folder(path)):
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
