"""Prepared data of a job: its cache, and its preparation in bounded memory.

Prepared data is tokenized once and mapped from files. Sources are read in one process and tokenized
in several as pieces, from which shards sorted by hash are gathered; see `setpoint.data.workers`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from setpoint.config import RunError, SetpointError
from setpoint.data.corpus import Corpus
from setpoint.data.document import Document, TokenPlace
from setpoint.data.reading import (
    FEW,
    CorpusRequest,
    documents_of,
    duplicate_name,
    held_out_count,
    requests_of,
    source_of,
    split_group,
)
from setpoint.data.sources.config import Tokens
from setpoint.data.sources.tokens import prepared_folders
from setpoint.data.token_store import (
    INDEX,
    INPUTS,
    MANIFEST,
    DamagedData,
    Side,
    StoreManifest,
    brief_changes,
    changed_names,
    hash_inputs,
    is_prepared,
    key_of,
    open_side,
    raw,
    read_inputs,
    read_manifest,
    replace_file,
    shard_name,
    size_of,
    verify,
    write_parts,
    write_verified,
)
from setpoint.data.workers import (
    PLAN,
    Done,
    Item,
    PlannedFacts,
    Shard,
    ShardDone,
    TokenizedPiece,
    Workers,
    mapped_file,
    piece_stem,
)
from setpoint.files.atomic import Written, sync_directory
from setpoint.files.lock import holder, write_owner
from setpoint.shapes.protocols import Work, no_work

if TYPE_CHECKING:
    from setpoint.data.config import Data, Prepare
    from setpoint.data.sources.config import SourceConfig
    from setpoint.data.tokenizer import Tokenizer

PAUSE = 0.5  # seconds between two looks at a lock


def stored_corpora(request: CorpusRequest, tokenizer: Tokenizer) -> list[Corpus] | None:
    """Map the corpora of a request for a single prepared folder; None for any other request.

    A folder that was prepared with a different split is read document by document, like token
    files.

    Raises:
        SetpointError: the folder is damaged, or was prepared with another tokenizer.
    """
    source = request.sources[0]
    if len(request.sources) != 1 or not isinstance(source, Tokens) or source.filter is not None:
        return None
    folders: list[Path] = []
    if len(source.paths) == 1:
        folders = prepared_folders(source, f"{request.where}.0.paths", fetch=True)
    if not folders:
        return None
    try:
        manifest, sides = open_folder(folders[0], tokenizer)
    except SetpointError as error:
        raise SetpointError(f"{request.where}.0.paths: {error}") from error
    if (manifest.described["held_out"], manifest.described["mixed"]) != (request.held_out, False):
        return None
    # One value for all, which takes no memory.
    return [
        replace(
            corpus,
            side=side,
            sources=(source.name,),
            source=np.broadcast_to(np.zeros(1, np.int32), corpus.starts.shape),
        )
        for side, corpus in zip((request.side, "held_out"), sides, strict=False)
    ]


def cached_corpora(
    request: CorpusRequest, config: Prepare, tokenizer: Tokenizer, show: Work
) -> list[Corpus] | None:
    """Map prepared corpora, preparing large ones first; None for small ones."""
    size = request.most_tokens()
    root = cache_folder(config)
    if not root.is_dir() and (config.above is None or (size is not None and size <= config.above)):
        return None
    inputs = request.inputs()
    if inputs is None:
        return None  # nothing says whether it is stale
    # Compressed files, and those on other machines, hold no less than their size.
    size = size_of(inputs) if size is None else size
    large = config.above is not None and size > config.above
    key = key_of(request, tokenizer, inputs)
    if not (root / key).is_dir():
        if not large:
            stale = find_stale(root, key, inputs)
            if stale:
                _say(f"data: {stale}")
            return None
        if any(isinstance(source, Tokens) for source in request.sources):
            request = replace(request, in_place=True)
            key = key_of(request, tokenizer, inputs)
    return open_or_prepare(request, key, inputs, config, tokenizer, show)


def open_or_prepare(
    request: CorpusRequest,
    key: str,
    inputs: Sequence[str],
    config: Prepare,
    tokenizer: Tokenizer,
    show: Work = no_work,
) -> list[Corpus]:
    """Open prepared data; prepare it first if it is missing or damaged, one process at a time.

    Raises:
        SetpointError: a source cannot be read, or a side is empty.
        RunError: prepared data cannot be written.
    """
    root = cache_folder(config)
    folder = root / key
    sides = _opened(folder, tokenizer)
    if sides is None:
        with locked(root, key):
            sides = _opened(folder, tokenizer)
            if sides is None:
                _say(find_stale(root, key, inputs))
                _say(f"data: preparing {', '.join(request.names)} in {folder}")
                prepare(
                    folder, request, tokenizer, inputs,
                    workers=workers_of(config), show=show,
                )  # fmt: skip
                sides = _opened(folder, tokenizer)
    if sides is None:
        raise RunError(f"{folder} was just prepared and is already damaged; check the disk")
    return sides


class PreparedText(NamedTuple):
    """Summary of prepared data.

    Arguments:
        bytes: size of the text.
    """

    folder: str
    sources: tuple[str, ...]
    documents: int
    tokens: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON."""
        return self._asdict()


def prepare_all(
    config: Data,
    tokenizer: Tokenizer,
    texts: Sequence[tuple[str, Sequence[SourceConfig], str]] = (),
    show: Work = no_work,
) -> list[PreparedText]:
    """Prepare all data of a job, or verify data that is prepared already.

    Arguments:
        texts: name, sources and path in the job of each evaluation data set.

    Raises:
        SetpointError: a source cannot be read, a side is empty, or a source cannot report changes
            to its documents.
        RunError: prepared data cannot be written.
    """
    for index, source in enumerate(config.sources):
        if source.is_streamed:
            raise SetpointError(
                f"data.sources.{index}.streaming: a streamed source is not prepared.\nValid: false."
            )
    requests = requests_of(config)
    requests += [CorpusRequest(name, tuple(sources), where) for name, sources, where in texts]
    prepared: list[PreparedText] = []
    for request in requests:
        sides = stored_corpora(request, tokenizer)
        if sides is None:
            inputs = request.inputs()
            if inputs is None:
                raise SetpointError(
                    f"{request.where}: a custom source without inputs() cannot be prepared: "
                    "changes of its documents would go unnoticed.\n"
                    "Valid: a method inputs() that yields one line for each file or table: its "
                    "name, a tab, and a state that changes with the content, such as size and "
                    "modification time."
                )
            key = key_of(request, tokenizer, inputs)
            sides = open_or_prepare(request, key, inputs, config.prepare, tokenizer, show)
        prepared.append(
            PreparedText(
                folder=str(sides[0].prepared),
                sources=request.names,
                documents=sum(len(side.files) for side in sides),
                tokens=sum(len(side.tokens) for side in sides),
                bytes=sum(side.byte_count for side in sides),
            )
        )
    return prepared


def workers_of(config: Prepare) -> int:
    """Number of processes that prepare data."""
    return config.workers or len(os.sched_getaffinity(0))


def cache_folder(config: Prepare) -> Path:
    """Folder of the cache."""
    if config.folder is not None:
        return Path(os.path.abspath(os.path.expanduser(config.folder)))
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "setpoint" / "data"


def _opened(folder: Path, tokenizer: Tokenizer) -> list[Corpus] | None:
    """Open the corpora of a folder; None if it is missing, or damaged and thus removed."""
    if not folder.is_dir():
        return None
    try:
        return open_folder(folder, tokenizer)[1]
    except DamagedData as error:
        _say(f"data: {str(error).partition(chr(10))[0]} Preparing it again.")
        shutil.rmtree(folder, ignore_errors=True)
        return None


def open_folder(folder: Path, tokenizer: Tokenizer) -> tuple[StoreManifest, list[Corpus]]:
    """Verify a folder and map its corpora.

    Raises:
        DamagedData: a file does not match the manifest.
        SetpointError: the folder was prepared with another tokenizer.
    """
    manifest = read_manifest(folder)
    verify(folder, manifest)
    return manifest, [open_side(folder, manifest, side, tokenizer) for side in manifest.sides]


def find_stale(root: Path, key: str, inputs: Sequence[str]) -> str:
    """Message about prepared data for the same request with outdated inputs; empty if none."""
    for folder in sorted(root.glob(f"{key.partition('-')[0]}-*")):
        if folder.name != key and is_prepared(folder):
            changed = brief_changes(read_inputs(folder), inputs)
            return f"the prepared data in {folder} is stale and is not used: {changed}"
    return ""


def outdated_inputs(
    request: CorpusRequest, prepared: Path, config: Prepare
) -> tuple[list[str], list[str], list[str]]:
    """Removed, new and changed inputs of a request that would have to be prepared anew.

    Arguments:
        prepared: folder of the data that was prepared for the request.

    Returns:
        empty lists if no size differs, if today's data is prepared already, or if the folder
        is gone or belongs to another request.

    Raises:
        SetpointError: the input files cannot be found.
    """
    unknown = [], [], []
    try:
        described = read_manifest(prepared).described
    except DamagedData:
        return unknown
    requests = (request, replace(request, in_place=True))
    if described not in [json.loads(json.dumps(r.described(), default=list)) for r in requests]:
        return unknown
    before, now = read_inputs(prepared), request.inputs()
    if not before or now is None:
        return unknown
    if next(cache_folder(config).glob(f"*-{hash_inputs(now)}"), None) is not None:
        return unknown
    return changed_names(before, now, sizes=True)


def _say(text: str) -> None:
    if text and os.environ.get("LOCAL_RANK", "0") in ("", "0"):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


@contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """Hold the lock of a folder in the cache, waiting while another process holds it.

    The operating system releases the lock of a killed process. Ranks wait here instead of at a
    barrier, because a long preparation would exceed its timeout.

    Raises:
        RunError: the folder cannot be locked.
    """
    path = root / f"{name}.lock"
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        if isinstance(error, (FileExistsError, NotADirectoryError)):
            raise RunError(f"data.prepare.folder: {root} is not a folder") from error
        raise RunError(f"data.prepare.folder: {path}: {error.strerror}") from error
    try:
        waits = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise RunError(
                        f"data.prepare.folder: {root} cannot be locked: {error.strerror}; put it "
                        "on a file system that supports flock"
                    ) from error
            if not waits:
                _say(f"data: {root / name} is being prepared by {holder(path)}; waiting for it")
            waits = True
            time.sleep(PAUSE)
        try:
            write_owner(descriptor)
        except OSError as error:
            raise RunError(f"data.prepare.folder: {path}: {error.strerror}") from error
        yield
    finally:
        os.close(descriptor)


FIRST_PIECE, LAST_PIECE, GROWTH = 1 << 20, 1 << 23, 16
"""Bytes of the first and the largest pieces, and number of pieces after which the size doubles, so
that small data is distributed as well. Pieces do not depend on the number of processes."""
MOST = 1 << 16  # documents of a piece
SHARD = 1 << 27
TOP = 1 << 53


def prepare(
    folder: Path,
    request: CorpusRequest,
    tokenizer: Tokenizer,
    inputs: Sequence[str],
    *,
    workers: int,
    show: Work = no_work,
) -> StoreManifest:
    """Prepare data in a new folder, or continue after an interruption.

    The folder is renamed into place when it is complete. The caller must hold the lock.

    Arguments:
        workers: number of processes that tokenize.

    Raises:
        SetpointError: a source cannot be read, a side is empty, or a document cannot be tokenized.
        RunError: a file cannot be written, for example on a full disk; finished pieces are kept.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    try:
        (partial / "pieces").mkdir(parents=True, exist_ok=True)
        with Workers(tokenizer, workers) as pool:
            preparation = Preparation(partial, request, tokenizer, pool, show)
            preparation.tokenize()
            sides = preparation.gather()
        data = "".join(f"{line}\n" for line in inputs).encode("utf-8", "surrogateescape")
        files = preparation.files | {INPUTS: replace_file(partial / INPUTS, [data])}
        manifest = StoreManifest(
            key=folder.name,
            described=request.described(),
            tokenizer=tokenizer.name,
            vocab_size=tokenizer.vocab_size,
            dtype=preparation.dtype.str,
            sides=tuple(sides),
            files={name: (file.size, file.digest) for name, file in sorted(files.items())},
            notes=tuple(preparation.notes),
            token_files=tuple(place[:-1] for place in preparation.places),
        )
        replace_file(partial / MANIFEST, [manifest.text().encode()])
        write_verified(
            partial,
            manifest,
            {name: (partial / name).stat().st_mtime_ns for name in manifest.files},
        )
        shutil.rmtree(preparation.pieces)
        sync_directory(partial)
        os.rename(partial, folder)
        sync_directory(folder.parent)
    except OSError as error:
        raise RunError(_not_written(partial, error)) from error
    return manifest


def _not_written(partial: Path, error: OSError) -> str:
    kept = len(list(partial.glob("pieces/*.json")))
    where = error.filename or partial
    space = ""
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(partial).free
        space = f" ({free / 1e6:,.0f} MB are free)" if error.errno == errno.ENOSPC else ""
    return (
        f"data.prepare.folder: {where} cannot be written: {error.strerror or error}{space}. "
        f"{kept} finished pieces are kept in {partial}; repeat the command to continue, or choose "
        "a folder on another disk"
    )


class Preparation:
    """The pieces and shards of a request.

    Attributes:
        done: summaries of the pieces.
        few: groups with few documents, which are split one by one.
        notes: messages from filters.
        places: token files that are mapped in place, with their numbers from 1.
        files: size and digest of each file that was written, by name.
    """

    def __init__(
        self,
        folder: Path,
        request: CorpusRequest,
        tokenizer: Tokenizer,
        pool: Workers,
        show: Work,
    ) -> None:
        self.folder, self.pieces = folder, folder / "pieces"
        self.request, self.tokenizer, self.pool, self.show = request, tokenizer, pool, show
        self.dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
        self.done: list[Done] = []
        self.few: set[int] = set()
        self.notes: list[str] = []
        self.places: dict[TokenPlace, int] = {}
        self.files: dict[str, Written] = {}

    def tokenize(self) -> None:
        """Tokenize all documents; pieces from an interrupted preparation are reused."""
        total = self.request.most_tokens()
        label = f"tokenizing {self.request.side}, tokens"
        bytes_done = tokens = 0
        works = (
            TokenizedPiece(
                self.pieces, number, documents, np.array(facts, PLAN), self.request.where
            )
            for number, (documents, facts) in enumerate(_pieces(self._items()))
        )
        for _, done in self.pool.run(works):
            self.done.append(done)
            bytes_done, tokens = bytes_done + done.size, tokens + done.tokens
            # An estimate by the bytes of the files, of which records are not all text.
            expected = None if total is None else round(tokens * total / max(bytes_done, 1))
            self.show(label, tokens, None if expected is None else max(expected, tokens + 1))
        self.show(label, tokens, tokens)
        if not self.done:
            raise self.request.no_text()

    def _items(self) -> Iterator[Item]:
        """The documents; groups with few documents are split here.

        A group is split as a whole: one source of a mixture, or all sources.
        """
        request, places = self.request, self.places

        def item(document: Document, held_out: bool) -> Item:
            file, place = 0, document.place
            if request.in_place and place is not None:
                file = places.setdefault(place._replace(first=0), len(places) + 1)
            return document, (source_of(document.name, request.names), held_out, file)

        def filled(index: int) -> Iterator[Document]:
            source, where = request.sources[index], request.where_of(index)
            documents = documents_of(source, where, self.tokenizer, self.notes)
            return (document for document in documents if document.size)

        sources = map(filled, range(len(request.sources)))
        share = request.held_out if request.held_out < 1 else 0.0
        groups = sources if request.mixed else [chain.from_iterable(sources)]
        for group, documents in enumerate(groups):
            first = list(islice(documents, FEW + 1))
            if share and len(first) <= FEW:
                self.few.add(group)
                for held_out, side in enumerate(split_group(first, share)):
                    yield from (item(document, bool(held_out)) for document in side)
            else:
                yield from (item(document, False) for document in chain(first, documents))

    def gather(self) -> list[Side]:
        """Write the shards of all sides."""
        request, few = self.request, self.few
        limits = self._limits()
        # If all tokens stay in their files, which are targets follows from where documents end.
        masked = any(piece.masked for piece in self.done)
        masked = masked and any(piece.copied for piece in self.done)
        size = sum(piece.tokens for piece in self.done) * self.dtype.itemsize
        parts: list[tuple[str, str, int | None, bool]] = [("train", request.side, None, False)]
        if request.mixed:
            parts = [(f"train-{n}", request.side, n, False) for n in range(len(request.sources))]
        if request.held_out:
            parts.append(("held_out", "held_out", None, True))
        sides: list[Side] = []
        for name, side, source, held_out in parts:
            below, above = (0, max(limits)) if held_out else (min(limits), TOP)
            if few:
                below, above = 0, TOP
            shards = max(1, math.ceil(size * (above - below) / TOP / SHARD))
            bounds = [below + (above - below) * k // shards for k in range(shards + 1)]
            works = [
                Shard(
                    self.pieces, len(self.done), self.folder, shard_name(name, k), bounds[k],
                    bounds[k + 1], held_out, limits, source, masked,
                )
                for k in range(shards)
            ]  # fmt: skip
            sides.append(self._side(name, side, source, works))
        return sides

    def _indexes(self) -> Iterator[npt.NDArray[Any]]:
        """(documents,) `ROW` of each piece."""
        for number in range(len(self.done)):
            yield np.load(f"{piece_stem(self.pieces, number)}.index.npy", mmap_mode="r")

    def _limits(self) -> tuple[int, ...]:
        """First 53 bits of the hash below which each source's documents are held out.

        0 for a group with few documents, which are marked individually.
        """
        request = self.request
        separate = request.mixed and request.held_out < 1
        if not request.held_out:
            return (0,) * len(request.sources)

        def hashes(group: int) -> Iterator[npt.NDArray[np.uint64]]:
            for index in self._indexes():
                hashes = index["hash"][:, 0]
                yield hashes[index["source"] == group] if separate else hashes

        limits: list[int] = []
        for group in range(len(request.sources) if separate else 1):
            documents = sum(map(len, hashes(group)))
            if group in self.few or not documents:
                limits.append(0)
                continue
            needed = held_out_count(documents, request.held_out) + 1
            lowest = np.zeros(0, np.uint64)
            for piece in hashes(group):
                lowest = np.sort(np.concatenate([lowest, piece[:needed]]), kind="stable")[:needed]
            limits.append(int(lowest[-1]) >> 11)
        return tuple(limits) if separate else (limits[0],) * len(request.sources)

    def _side(self, name: str, side: str, source: int | None, works: Sequence[Shard]) -> Side:
        """Write the shards of a side, and its index over all shards.

        Arguments:
            source: index of its only source; None: all sources.
        """
        digest = hashlib.sha256(f"{self.tokenizer.name}\n".encode())
        # A separator stands before all.
        tokens, size = 1, int(self.tokenizer.token_bytes[self.tokenizer.separator])
        documents, copied, masked = 0, 0, False
        offsets: list[tuple[int, int]] = []
        shard: ShardDone
        for number, (_, shard) in enumerate(self.pool.run(works)):
            if shard.repeated_name:
                raise duplicate_name(self.request.where, shard.repeated_name)
            digest.update(shard.records)
            offsets.append((tokens, copied))
            tokens, size = tokens + shard.tokens, size + shard.bytes
            documents, copied = documents + shard.documents, copied + shard.copied
            masked = masked or shard.masked
            self.files.update(shard.files)
            self.show(f"writing {name}, shards", number + 1, len(works))
        if not documents:
            raise self._empty(source)
        stems = [self.pieces / work.name for work in works]

        def starts() -> Iterator[npt.NDArray[np.int64]]:
            for stem, (first, _) in zip(stems, offsets, strict=True):
                lengths = np.load(f"{stem}.index.npy", mmap_mode="r")["tokens"] + 1
                yield first + np.cumsum(lengths) - lengths

        def index() -> Iterator[npt.NDArray[Any]]:
            named = 0
            for stem, (_, copied) in zip(stems, offsets, strict=True):
                rows = np.load(f"{stem}.index.npy")
                rows["at"] += copied * (rows["file"] == 0)
                rows["name_at"] += named
                named += int(rows["name_length"].sum(dtype=np.int64))
                yield rows

        for file, dtype, parts in (
            (f"{name}.starts.npy", np.dtype("<i8"), starts()),
            (f"{name}.index.npy", INDEX, index()),
        ):
            self.files[file] = write_parts(self.folder / file, dtype, documents, parts)
        names = (raw(mapped_file(f"{stem}.names", np.dtype(np.uint8))) for stem in stems)
        self.files[f"{name}.names"] = replace_file(self.folder / f"{name}.names", names)
        all_names = self.request.names
        sources = all_names if source is None else all_names[source : source + 1]
        return Side(
            name=name,
            side=side,
            sources=sources or (side,),
            documents=documents,
            tokens=tokens,
            bytes=size,
            digest=digest.hexdigest(),
            shards=len(works),
            masked=masked,
        )

    def _empty(self, source: int | None) -> SetpointError:
        """Error for a side without documents."""
        request = self.request
        if source is not None:
            has_text = any((index["source"] == source).any() for index in self._indexes())
            return request.no_documents(source, has_text)
        return SetpointError(
            f"{request.where}: data.held_out = {request.held_out:g} holds nothing out: there are "
            f"only one or two documents, which are too short to split, or are conversations, "
            f"which are not split.\n"
            "Valid: more documents, data.validation, or data.held_out = 0 with evaluation = null."
        )


def _pieces(items: Iterator[Item]) -> Iterator[tuple[list[Document], list[PlannedFacts]]]:
    documents, facts = list[Document](), list[PlannedFacts]()
    size, number = 0, 0
    for document, planned in items:
        documents.append(document)
        facts.append(planned)
        size += document.size
        most = min(LAST_PIECE, FIRST_PIECE << (number // GROWTH))
        if size >= most or len(documents) == MOST:
            yield documents, facts
            documents, facts, size, number = [], [], 0, number + 1
    if documents:
        yield documents, facts
