"""Training and validation data of a job: read into memory, mapped from the cache, or streamed.

The cache holds prepared data: corpora that were tokenized once and are mapped from files.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from setpoint.config import RunError, SetpointError
from setpoint.data.corpus import Corpus, build_corpus
from setpoint.data.document import Document
from setpoint.data.prepare import prepare
from setpoint.data.reading import (
    CorpusRequest,
    documents_of,
    requests_of,
    split_documents,
)
from setpoint.data.sources.config import Tokens
from setpoint.data.sources.tokens import prepared_folders
from setpoint.data.stream import Stream, hold_out, open_streams
from setpoint.data.token_store import (
    DamagedData,
    StoreManifest,
    brief_changes,
    changed_names,
    hash_inputs,
    is_prepared,
    key_of,
    open_side,
    read_inputs,
    read_manifest,
    size_of,
    verify,
)
from setpoint.files.lock import holder, write_owner
from setpoint.shapes.protocols import Work, no_work

if TYPE_CHECKING:
    from setpoint.data.config import Data, Prepare
    from setpoint.data.sources.config import SourceConfig
    from setpoint.data.tokenizer import Tokenizer


class Sides(NamedTuple):
    """Training and validation data.

    Arguments:
        train: one corpus of all sources, or one per source of a mixture; a `Stream` if streamed.
        held_out: validation corpus of all sources; None if nothing is held out.
    """

    train: tuple[Corpus | Stream, ...]
    held_out: Corpus | None


def read_sides(config: Data, tokenizer: Tokenizer, show: Work = no_work) -> Sides:
    """Read or map training and validation data; both give the same order of tokens.

    Raises:
        SetpointError: a source cannot be read, or a side is empty.
        RunError: prepared data cannot be written.
    """
    train, *validation = requests_of(config)
    streams = open_streams(config, tokenizer) if config.streams else []
    read = _corpora_of(train, config.prepare, tokenizer, show) if train.sources else []
    held_out = next((corpus for corpus in read if corpus.side == "held_out"), None)
    read = [corpus for corpus in read if corpus is not held_out]
    for request in validation:
        (held_out,) = _corpora_of(request, config.prepare, tokenizer, show)
    if streams and not read and not validation and config.held_out:
        streams, held_out = hold_out(streams, tokenizer, show)
    if not config.is_mixture:
        return Sides((*read, *streams), held_out)
    stored, streamed = iter(read), iter(streams)
    return Sides(
        tuple(next(streamed if source.is_streamed else stored) for source in config.sources),
        held_out,
    )


def _corpora_of(
    request: CorpusRequest, config: Prepare | None, tokenizer: Tokenizer, show: Work
) -> list[Corpus]:
    """The corpora of a request: prepared ones, or else in memory."""
    sides = stored_corpora(request, tokenizer)
    if sides is None and config is not None:
        sides = cached_corpora(request, config, tokenizer, show)
    return build_corpora(request, tokenizer, show) if sides is None else sides


def named_corpus(
    name: str,
    sources: Sequence[SourceConfig],
    tokenizer: Tokenizer,
    config: Prepare | None = None,
    *,
    where: str,
    show: Work = no_work,
) -> Corpus:
    """Read all documents of sources into one corpus, for an evaluation text.

    Arguments:
        config: section of the cache; None: no cache.

    Raises:
        SetpointError: a source cannot be read, or no source contains text.
    """
    (corpus,) = _corpora_of(CorpusRequest(name, tuple(sources), where), config, tokenizer, show)
    return corpus


def build_corpora(
    request: CorpusRequest, tokenizer: Tokenizer, show: Work = no_work
) -> list[Corpus]:
    """Read all sources of a request into memory.

    Documents are in the order of the split's hash, so that any first part of a corpus is a fair
    sample.

    Returns:
        one corpus, or one per source if `request.mixed`; then the corpus of held-out documents.

    Raises:
        SetpointError: a source cannot be read, or a side is empty.
    """
    groups: list[list[Document]] = [[] for _ in request.sources] if request.mixed else [[]]
    numbers: dict[str, int] = {}
    notes: list[str] = []
    for index, source in enumerate(request.sources):
        for document in documents_of(source, request.where_of(index), tokenizer, notes):
            groups[index * request.mixed].append(document)
            numbers[document.name] = len(numbers)
            show(f"reading documents of {request.side}", len(numbers), None)
    has_text = [any(document.size for document in group) for group in groups]
    if not any(has_text):
        raise request.no_text()
    parts, held_out = split_documents(groups, request.held_out, where=request.where)
    build = partial(build_corpus, tokenizer=tokenizer, where=request.where, show=show, read=numbers)
    corpora: list[Corpus] = []
    for index, part in enumerate(parts):
        if not part:
            raise request.no_documents(index, has_text[index])
        names = request.names[index : index + 1] if request.mixed else request.names
        corpora.append(build(part, side=request.side, sources=names, notes=() if index else notes))
    if held_out:
        corpora.append(build(held_out, side="held_out", sources=request.names))
    return corpora


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
                raise unknown_inputs(request)
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


def unknown_inputs(request: CorpusRequest) -> SetpointError:
    """Error for a source without a method `inputs`, which reports changes."""
    return SetpointError(
        f"{request.where}: a custom source without inputs() cannot be prepared: changes of its "
        "documents would go unnoticed.\n"
        "Valid: a method inputs() that yields one line for each file or table: its name, a tab, "
        "and a state that changes with the content, such as size and modification time."
    )
