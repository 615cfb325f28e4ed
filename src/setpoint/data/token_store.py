"""Prepared data: memory-mapped files with a manifest, and their key in the cache.

The documents of a side are in the order of a corpus in memory. `SIDE.index.npy` contains one
`INDEX` per document, `SIDE.starts.npy` the documents' offsets in the corpus, and `SIDE.names` their
names. The shards of a side contain tokens: `SIDE-NUMBER.tokens.npy` (documents, each followed by a
separator), and `.mask.npy` if documents have a target mask. Documents of token files may instead be
mapped in place; shards do not contain them. `manifest.json` is written last.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.corpus import CompleteMask, Corpus, PieceRow, TokenRow
from setpoint.data.document import Document, FileRecord, Records
from setpoint.files.atomic import Written, digest_file, replacing, write_file

if TYPE_CHECKING:
    from setpoint.data.reading import CorpusRequest
    from setpoint.data.tokenizer import Tokenizer


KIND = "setpoint prepared data"
FORMAT = 1
MANIFEST = "manifest.json"
_SIZE = re.compile(r"(?:size=)?(\d+)\b")
INDEX = np.dtype(
    [
        ("read", "<i8"),  # rises in the order in which the sources give the documents
        ("score", "<f8"),  # NaN: none
        ("tokens", "<i8"),
        ("size", "<i8"),  # in bytes
        ("name_at", "<i8"),
        ("name_length", "<i4"),
        ("source", "<i4"),
        ("file", "<i4"),  # number of the token file that it stays in, from 1; 0: the shards
        ("at", "<i8"),  # offset of the first token there
        ("sha256", "u1", (32,)),
    ]
)
"""Index entry of a document."""


def raw(array: npt.NDArray[Any]) -> memoryview:
    """Content of an array for `write_file`; also works for empty arrays."""
    return memoryview(np.ascontiguousarray(array).view(np.uint8).data)


def replace_file(path: Path, chunks: Iterable[bytes | memoryview]) -> Written:
    """Write a new file and flush it to disk."""
    path.unlink(missing_ok=True)  # a partial file of a killed process
    return write_file(path, chunks)


def write_array(path: Path, array: npt.NDArray[Any]) -> Written:
    """Write a `.npy` file; see `replace_file`."""
    return write_parts(path, array.dtype, len(array), [array])


def write_parts(
    path: Path, dtype: np.dtype[Any], length: int, parts: Iterable[npt.NDArray[Any]]
) -> Written:
    """Write arrays as one `.npy` file; see `replace_file`."""
    head = io.BytesIO()
    described = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (length,),
    }
    np.lib.format.write_array_header_1_0(head, described)
    return replace_file(path, chain([head.getvalue()], map(raw, parts)))


VERIFIED = "verified.json"
"""Names and modification times of the files that this machine has verified."""
INPUTS = "inputs.txt"


@dataclass(frozen=True, slots=True)
class Side:
    """A corpus in a store.

    Arguments:
        name: prefix of its files.
        side: see `Corpus.side`.
        sources: see `Corpus.sources`.
        masked: whether it has a target mask.
    """

    name: str
    side: str
    sources: tuple[str, ...]
    documents: int
    tokens: int
    bytes: int
    digest: str
    shards: int
    masked: bool


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """Content of a store.

    Arguments:
        key: fingerprint of everything that determines the content.
        described: the same in readable form, including the sources.
        tokenizer: `Tokenizer.name`.
        files: size and BLAKE3 of each file, by name.
        notes: see `Corpus.notes`.
        token_files: path, dtype, offset and tokens of files that are mapped in place.
    """

    key: str
    described: dict[str, Any]
    tokenizer: str
    vocab_size: int
    dtype: str
    sides: tuple[Side, ...]
    files: dict[str, tuple[int, str]]
    notes: tuple[str, ...] = ()
    token_files: tuple[tuple[str, str, int, int], ...] = ()

    def text(self) -> str:
        """The text of the file."""
        return json.dumps({"kind": KIND, "format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @property
    def tokens(self) -> int:
        """Tokens of all sides."""
        return sum(side.tokens for side in self.sides)

    @property
    def documents(self) -> int:
        """Documents of all sides."""
        return sum(side.documents for side in self.sides)


class DamagedData(SetpointError):
    """Prepared data that does not match its manifest."""


def read_manifest(folder: Path) -> StoreManifest:
    """Read the manifest of a store.

    Raises:
        DamagedData: the manifest is missing, damaged or of another version.
    """
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if content.pop("kind") != KIND:
            raise ValueError("it is not a manifest of prepared data")
        version = content.pop("format")
        if version != FORMAT:
            raise DamagedData(
                f"the prepared data in {folder} has format {version!r}, but this version of "
                f"Setpoint reads {FORMAT}.\nValid: data prepared by this version."
            )
        sides = tuple(
            Side(**{**side, "sources": tuple(side["sources"])}) for side in content.pop("sides")
        )
        files = {
            name: (int(size), str(digest)) for name, (size, digest) in content.pop("files").items()
        }
        for name in files:  # they are copied and pushed under these names
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"it names the file {name!r}, which is in another folder")
        notes = tuple(str(note) for note in content.pop("notes"))
        token_files = tuple(
            (str(path), str(dtype), int(offset), int(count))
            for path, dtype, offset, count in content.pop("token_files")
        )
        return StoreManifest(
            **content, sides=sides, files=files, notes=notes, token_files=token_files
        )
    except OSError as error:
        raise DamagedData(
            f"{folder / MANIFEST} cannot be read: {error.strerror}.\n"
            "Valid: a folder that `setpoint data prepare` wrote."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedData(
            f"{folder / MANIFEST} is damaged: {error or type(error).__name__}.\n"
            "Valid: a folder that `setpoint data prepare` wrote."
        ) from error


def verify(folder: Path, manifest: StoreManifest, contents: bool = True) -> None:
    """Compare all files with the manifest.

    Sizes are always compared. A file is hashed once, and again if its modification time changes, so
    that opening large data is cheap.

    Arguments:
        contents: whether to hash files.

    Raises:
        DamagedData: a file is missing, truncated or changed.
    """
    times = _read_verified(folder, manifest)
    now: dict[str, int] = {}
    for name, (size, digest) in manifest.files.items():
        try:
            status = (folder / name).stat()
            if status.st_size != size:
                less = "truncated: it" if status.st_size < size else "another file: it"
                damage = f"{name} is {less} has {status.st_size:,} bytes, and had {size:,}"
                raise DamagedData(_damaged(folder, damage))
            hashed = contents and times.get(name) != status.st_mtime_ns
            if hashed and digest_file(folder / name).digest != digest:
                damage = f"the content of {name} has changed since it was written"
                raise DamagedData(_damaged(folder, damage))
        except OSError as error:
            raise DamagedData(_damaged(folder, f"{name}: {error.strerror}")) from error
        now[name] = status.st_mtime_ns
    if contents and now != times:
        write_verified(folder, manifest, now)


def _damaged(folder: Path, damage: str) -> str:
    return (
        f"the prepared data in {folder} is damaged: {damage}.\n"
        "Valid: remove the folder and prepare it again (`setpoint data prepare`)."
    )


def _read_verified(folder: Path, manifest: StoreManifest) -> dict[str, int]:
    try:
        content = json.loads((folder / VERIFIED).read_text(encoding="utf-8"))
        return dict(content["files"]) if content["of"] == _manifest_hash(manifest) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # nothing is trusted then


def write_verified(folder: Path, manifest: StoreManifest, times: dict[str, int]) -> None:
    """Record which files were verified; without the record, they are verified again."""
    text = json.dumps({"of": _manifest_hash(manifest), "files": times})
    with suppress(OSError), replacing(folder / VERIFIED) as staged:
        staged.write_text(text, encoding="utf-8")


def read_inputs(folder: Path) -> list[str]:
    """State of the input files when a store was prepared; empty if unknown.

    See `setpoint.data.sources.files.inputs_of`.
    """
    try:
        return (folder / INPUTS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _manifest_hash(manifest: StoreManifest) -> str:
    return hashlib.sha256(manifest.text().encode()).hexdigest()


def open_side(folder: Path, manifest: StoreManifest, side: Side, tokenizer: Tokenizer) -> Corpus:
    """Map a corpus of a verified store.

    Raises:
        DamagedData: the dtype or length of a file differs from the manifest.
        SetpointError: the store was prepared with another tokenizer.
    """
    if tokenizer.name != manifest.tokenizer:
        raise SetpointError(
            f"the prepared data in {folder} was made with the tokenizer '{manifest.tokenizer}', "
            f"but the job has '{tokenizer.name}'.\nValid: the same tokenizer, or data prepared "
            "with the job's."
        )
    before = np.array([tokenizer.separator], np.dtype(manifest.dtype))
    starts = _mapped(folder / f"{side.name}.starts.npy", np.dtype("<i8"), side.documents)
    index = _mapped(folder / f"{side.name}.index.npy", INDEX, side.documents)
    names = np.asarray(np.memmap(folder / f"{side.name}.names", np.uint8, "r"))
    tokens = _joined(folder, side, "tokens", before)
    if manifest.token_files:
        files = [_token_file(folder, *file) for file in manifest.token_files]
        # A document of the shards is as far in them as behind the separator before them.
        places = index["at"] + (index["file"] == 0)
        tokens = PieceRow([tokens, *files], starts, index["file"], places, side.tokens, before)
    mask = None
    if side.masked and f"{shard_name(side.name, 0)}.mask.npy" in manifest.files:
        mask = _joined(folder, side, "mask", np.ones(1, np.bool_))
    elif side.masked:
        mask = CompleteMask(starts, side.tokens)
    for kind, row in (("tokens", tokens), ("mask", mask)):
        if row is not None and len(row) != side.tokens:
            damage = f"the {kind} of {side.name} are {len(row):,}, and were {side.tokens:,}"
            raise DamagedData(_damaged(folder, damage))
    return Corpus(
        side=side.side,
        tokens=tokens,
        token_bytes=tokenizer.token_bytes,
        separator=tokenizer.separator,
        byte_count=side.bytes,
        files=StoredRecords(index, names),
        digest=side.digest,
        sources=side.sources,
        starts=starts,
        # One value for all takes no memory.
        source=index["source"]
        if len(side.sources) > 1
        else np.broadcast_to(np.zeros(1, np.int32), (side.documents,)),
        trained=mask,
        notes=manifest.notes if side == manifest.sides[0] else (),
        prepared=str(folder),
        read_at=index["read"],
        scores=index["score"],
    )


def first_lengths(folder: Path, count: int) -> list[int]:
    """Lengths of the first documents of a store, in tokens."""
    manifest, lengths = read_manifest(folder), list[int]()
    for side in manifest.sides:
        path = folder / f"{side.name}.starts.npy"
        starts = _mapped(path, np.dtype("<i8"), side.documents)[: count + 1 - len(lengths)]
        ends = [side.tokens] if len(starts) == side.documents else []
        lengths += (np.diff([*starts.tolist(), *ends]) - 1).tolist()
    return lengths


def _joined(folder: Path, side: Side, kind: str, first: npt.NDArray[Any]) -> PieceRow:
    """Concatenation of the files of a side, after `first`."""
    parts = [
        _mapped(folder / f"{shard_name(side.name, number)}.{kind}.npy", first.dtype)
        for number in range(side.shards)
    ]
    return PieceRow.joined([first, *(part for part in parts if len(part))])


def _token_file(folder: Path, path: str, dtype: str, offset: int, count: int) -> TokenRow:
    try:
        return np.asarray(np.memmap(path, dtype, "r", offset, (count,)))
    except (OSError, TypeError, ValueError) as error:
        raise DamagedData(_damaged(folder, f"its token file {path}: {error}")) from error


def shard_name(side: str, number: int) -> str:
    """Prefix of a shard's file names."""
    return f"{side}-{number:05d}"


def _mapped(path: Path, dtype: np.dtype[Any], length: int | None = None) -> npt.NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r") if path.stat().st_size > 128 else np.load(path)
    except (OSError, ValueError) as error:
        raise DamagedData(_damaged(path.parent, f"{path.name}: {error}")) from error
    if array.dtype != dtype:
        damage = f"{path.name} has the dtype {array.dtype}, but the manifest has {dtype}"
        raise DamagedData(_damaged(path.parent, damage))
    if length is not None and len(array) != length:
        damage = f"{path.name} has {len(array):,} entries, but the manifest has {length:,}"
        raise DamagedData(_damaged(path.parent, damage))
    return np.asarray(array)


class StoredRecords(Records):
    """Records of a side's documents, made on demand from its index and names.

    Arguments:
        index: (documents,) `INDEX`.
        names: bytes of all names.
    """

    def __init__(self, index: npt.NDArray[Any], names: npt.NDArray[np.uint8]) -> None:
        self.entries, self.names = index, names

    def __len__(self) -> int:
        return len(self.entries)

    def record(self, number: int) -> FileRecord:
        row = self.entries[number]
        start = int(row["name_at"])
        name = self.names[start : start + int(row["name_length"])].tobytes()
        return FileRecord(
            name.decode("utf-8", "surrogateescape"), int(row["size"]), row["sha256"].tobytes().hex()
        )


def stored_documents(folder: Path, name: str, tokenizer: Tokenizer) -> Iterator[Document]:
    """The documents of all sides of a store, as tokens.

    Arguments:
        name: name of the source, the prefix of their names.

    Raises:
        SetpointError: the store is damaged, or was prepared with another tokenizer.
    """
    manifest = read_manifest(folder)
    verify(folder, manifest)
    for side in manifest.sides:
        corpus = open_side(folder, manifest, side, tokenizer)
        for number, record in enumerate(corpus.files):
            start = int(corpus.starts[number])
            end = int(corpus.starts[number + 1]) if number + 1 < side.documents else side.tokens
            trained = None
            if corpus.trained is not None:
                # The separator after plain text is a target; after a complete document it is not.
                mask = corpus.trained[start:end]
                trained = None if mask[-1] else mask[:-1]
            yield Document(
                f"{name}/{record.name}",
                tokens=np.array(corpus.tokens[start : end - 1]),
                trained=trained,
            )


def is_prepared(folder: Path) -> bool:
    """True if a folder contains prepared data of any version, even if incomplete or damaged."""
    try:
        with (folder / MANIFEST).open("rb") as file:
            return KIND.encode() in file.read(200)
    except OSError:
        return False


def key_of(request: CorpusRequest, tokenizer: Tokenizer, inputs: Sequence[str]) -> str:
    """Name of a folder in the cache: hashes of the request and tokenizer, and of the inputs."""
    chat = getattr(tokenizer, "chat", None)
    facts = [chat.controls, chat.variables, chat.templates] if chat is not None else None
    of_tokenizer = [tokenizer.name, tokenizer.vocab_size, facts]
    query = json.dumps([FORMAT, of_tokenizer, request.described()], sort_keys=True, default=list)
    return f"{hashlib.sha256(query.encode()).hexdigest()[:16]}-{hash_inputs(inputs)}"


def hash_inputs(inputs: Sequence[str]) -> str:
    """The part of a key for the state of the input files."""
    state = hashlib.sha256()
    for line in inputs:
        data = line.encode("utf-8", "surrogateescape")
        state.update(f"{len(data)} ".encode() + data)
    return state.hexdigest()[:16]


def size_of(inputs: Sequence[str]) -> int:
    """Total bytes of the files of known size."""
    states = (_SIZE.match(line.rpartition("\t")[2]) for line in inputs)
    return sum(int(state[1]) for state in states if state)


def changed_names(
    before: Iterable[str], now: Iterable[str], sizes: bool = False
) -> tuple[list[str], list[str], list[str]]:
    """Names of removed, new and changed inputs.

    Arguments:
        sizes: whether to compare only sizes, since a new time does not mean new content.
    """
    old, new = _states(before, sizes), _states(now, sizes)
    return (
        [name for name in old if name not in new],
        [name for name in new if name not in old],
        [name for name in new if old.get(name, new[name]) != new[name]],
    )


def _states(lines: Iterable[str], sizes: bool = False) -> dict[str, str]:
    parts = (line.rpartition("\t") for line in lines)
    return {name: state.partition(" ")[0] if sizes else state for name, _, state in parts}


def brief_changes(before: Iterable[str], now: Iterable[str]) -> str:
    """Message about the first few new, removed or changed inputs."""
    gone, new, changed = changed_names(before, now)
    changes = [f"{name} is new" for name in new] + [f"{name} is gone" for name in gone]
    changes += [f"{name} changed" for name in changed]
    return ", ".join(changes[:3]) + (", ..." if len(changes) > 3 else "")
