"""Work of the processes that prepare data: pieces and shards, and the pool that runs them.

A piece is a few megabytes of tokenized documents in source order: `NUMBER.tokens`, `.mask`,
`.names`, `.index.npy` sorted by the hash of names, and finally `NUMBER.json`, which marks it as
complete. A shard, gathered from all pieces, contains the documents in a range of hashes.

Processes receive pickled tasks on standard input, because `multiprocessing` would rerun the user's
script in each. They do not import torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.corpus import count_bytes, encoded
from setpoint.data.document import Document
from setpoint.data.token_store import INDEX, raw, replace_file, write_array
from setpoint.files.atomic import Written, replacing, write_file

if TYPE_CHECKING:
    from setpoint.data.tokenizer import Tokenizer

ROW = np.dtype(
    [
        *INDEX.descr,  # `at` and `name_at` are offsets in the piece
        ("hash", "<u8", (4,)),  # of the name, the first of four being the highest
        ("bytes", "<i8"),  # of its tokens and a separator, if it stays in a token file
        ("held_out", "?"),
        ("masked", "?"),
    ]
)
"""Index entry of a document of a piece."""


class Done(NamedTuple):
    """Summary of a complete piece, its last file."""

    documents: int
    tokens: int
    size: int
    first: str
    last: str
    masked: bool
    copied: int


PLAN = np.dtype(
    [
        ("source", "<i4"),  # index
        ("held_out", "?"),
        ("file", "<i4"),  # see `INDEX`
    ]
)
"""Facts about a document that are known before it is tokenized."""
PlannedFacts = tuple[int, bool, int]
Item = tuple[Document, PlannedFacts]


@dataclass(frozen=True, slots=True)
class TokenizedPiece:
    """A piece to tokenize.

    Arguments:
        facts: (documents,) `PLAN`.
    """

    folder: Path
    number: int
    documents: Sequence[Document]
    facts: npt.NDArray[Any]
    where: str

    def __reduce__(self) -> tuple[Any, ...]:
        # A list for each attribute: five times as fast as an object for each document.
        attributes = ("name", "data", "tokens", "trained", "score", "place")
        columns = [[getattr(document, name) for document in self.documents] for name in attributes]
        return _rebuild_piece, (self.folder, self.number, columns, self.facts, self.where)

    def run(self, tokenizer: Tokenizer) -> Done:
        """Tokenize and write the piece, unless an interrupted preparation already did.

        Raises:
            SetpointError: the tokenizer cannot encode a document, which the message names.
            OSError: the piece cannot be written.
        """
        documents = self.documents
        done = read_done(self.folder, self.number)
        size = sum(document.size for document in documents)
        content = len(documents), size, documents[0].name, documents[-1].name
        if done is not None and content == (done.documents, done.size, done.first, done.last):
            return done
        dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
        encodings = [
            np.concatenate([ids for _, ids in encoded(document, tokenizer, self.where)])
            for document in documents
        ]
        encodings = [ids.astype(dtype, copy=False) for ids in encodings]
        names = [d.name.encode("utf-8", "surrogateescape") for d in documents]
        masked = any(d.trained is not None for d in documents)
        files = self.facts["file"]
        copied = files == 0
        masks = [
            np.ones(len(tokens), np.bool_) if d.trained is None else d.trained
            for d, tokens, copy in zip(documents, encodings, copied.tolist(), strict=True)
            if masked and copy
        ]
        rows = np.zeros(len(documents), ROW)
        hashes = b"".join(hashlib.sha256(name).digest() for name in names)
        rows["hash"] = np.frombuffer(hashes, ">u8").reshape(-1, 4)
        rows["tokens"], rows["name_length"] = list(map(len, encodings)), list(map(len, names))
        sizes = rows["tokens"] * copied
        rows["at"], rows["file"] = np.cumsum(sizes) - sizes, files
        for number in np.flatnonzero(files).tolist():
            place = documents[number].place
            assert place is not None
            rows["at"][number] = place.first
            size = count_bytes(encodings[number], tokenizer.token_bytes)
            rows["bytes"][number] = size + tokenizer.token_bytes[tokenizer.separator]
        rows["name_at"] = np.cumsum(rows["name_length"], dtype=np.int64) - rows["name_length"]
        rows["read"] = (self.number << 32) + np.arange(len(documents))
        rows["size"] = [d.size for d in documents]
        rows["score"] = [np.nan if d.score is None else d.score for d in documents]
        rows["source"], rows["held_out"] = self.facts["source"], self.facts["held_out"]
        rows["masked"] = [d.trained is not None for d in documents]
        contents = bytes.fromhex("".join(d.record().sha256 for d in documents))
        rows["sha256"] = np.frombuffer(contents, np.uint8).reshape(-1, 32)
        stem = piece_stem(self.folder, self.number)
        kept = (tokens for tokens, copy in zip(encodings, copied.tolist(), strict=True) if copy)
        replace_file(Path(f"{stem}.tokens"), map(raw, kept))
        replace_file(Path(f"{stem}.names"), [b"".join(names)])
        if masked:
            replace_file(Path(f"{stem}.mask"), [raw(mask) for mask in masks])
        write_array(Path(f"{stem}.index.npy"), rows[in_order(rows)])
        done = Done(
            len(documents), int(rows["tokens"].sum()), int(rows["size"].sum()),
            documents[0].name, documents[-1].name, masked, int(copied.sum()),
        )  # fmt: skip
        with replacing(Path(f"{stem}.json")) as staged:
            write_file(staged, [json.dumps(done).encode()])
        return done


def _rebuild_piece(
    folder: Path,
    number: int,
    columns: Sequence[Sequence[Any]],
    facts: npt.NDArray[Any],
    where: str,
) -> TokenizedPiece:
    documents = [Document(*values) for values in zip(*columns, strict=True)]
    return TokenizedPiece(folder, number, documents, facts, where)


def piece_stem(folder: Path, number: int) -> Path:
    """Path of a piece without its suffix."""
    return folder / f"{number:06d}"


def read_done(folder: Path, number: int) -> Done | None:
    """Read the summary of a piece; None if it is not complete."""
    try:
        return Done(*json.loads(Path(f"{piece_stem(folder, number)}.json").read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def in_order(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Order of rows by the hash of names."""
    return np.lexsort(rows["hash"].T[::-1])


class ShardDone(NamedTuple):
    """Summary of a shard that was written.

    Arguments:
        copied: number of tokens that were copied, not mapped in place.
        files: size and digest of each file, by name.
        records: bytes for the digest of the side.
        repeated_name: a name shared by two documents; empty: names are unique.
    """

    documents: int
    tokens: int
    copied: int
    bytes: int
    masked: bool
    files: dict[str, Written]
    records: bytes
    repeated_name: str


@dataclass(frozen=True, slots=True)
class Shard:
    """A range of hashes of one side, to be gathered from pieces.

    Arguments:
        below, above: half-open range of the first 53 bits of the hash.
        held_out: whether to gather held-out or training documents.
        limits: see `_limits`; individually marked documents are also held out.
        source: index of the source to gather; None: all sources.
    """

    pieces: Path
    count: int
    folder: Path
    name: str
    below: int
    above: int
    held_out: bool
    limits: tuple[int, ...]
    source: int | None
    masked: bool

    def run(self, tokenizer: Tokenizer) -> ShardDone:
        """Gather and write the shard.

        Raises:
            OSError: the shard cannot be read or written.
        """
        dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
        numbered = list(self._rows())
        rows = np.concatenate([rows for _, rows in numbered]) if numbered else np.zeros(0, ROW)
        piece = np.repeat([number for number, _ in numbered], [len(rows) for _, rows in numbered])
        order = in_order(rows)
        rows, piece = rows[order], piece[order].astype(np.int64)
        lengths = rows["tokens"].astype(np.int64)
        starts = np.cumsum(lengths + 1) - lengths - 1
        total = int((lengths + 1).sum())
        # Tokens that stay in their files take no place among those of the shard.
        copied = rows["file"] == 0
        sizes = (lengths + 1) * copied
        places = np.where(copied, np.cumsum(sizes) - sizes, rows["at"])
        tokens = np.full(int(sizes.sum()), tokenizer.separator, dtype)
        mask = np.ones(total if self.masked else 0, np.bool_)
        names: list[bytes] = [b""] * len(rows)
        # Piece by piece, so that no more than one is open.
        for number in np.unique(piece).tolist():
            numbers = np.flatnonzero(piece == number)
            self._copy(number, numbers, rows, places, starts, tokens, mask, names)
        index = np.zeros(len(rows), INDEX)
        for field in INDEX.names or ():
            index[field] = rows[field]
        index["at"] = places
        index["name_at"] = np.cumsum(rows["name_length"], dtype=np.int64) - rows["name_length"]
        # Of the whole side there is one index, and one file of names.
        write_array(self.pieces / f"{self.name}.index.npy", index)
        replace_file(self.pieces / f"{self.name}.names", [b"".join(names)])
        files = {f"{self.name}.tokens.npy": tokens}
        if self.masked:
            files[f"{self.name}.mask.npy"] = mask
        return ShardDone(
            documents=len(rows),
            tokens=total,
            copied=len(tokens),
            bytes=count_bytes(tokens, tokenizer.token_bytes) + int(rows["bytes"].sum()),
            masked=bool(rows["masked"].any()),
            files={name: write_array(self.folder / name, row) for name, row in files.items()},
            records=b"".join(
                f"{len(name)} {size} {bytes(sha).hex()} ".encode() + name + b"\n"
                for name, size, sha in zip(
                    names, rows["size"].tolist(), rows["sha256"], strict=True
                )
            ),
            repeated_name=_repeated_name(rows, names),
        )

    def _rows(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The rows of each piece that belong to the shard."""
        low = np.uint64(self.below << 11)
        for number in range(self.count):
            index = np.load(f"{piece_stem(self.pieces, number)}.index.npy", mmap_mode="r")
            highest = index["hash"][:, 0]
            first = int(np.searchsorted(highest, low))
            last = len(index)
            if self.above < 2**53:
                last = int(np.searchsorted(highest, np.uint64(self.above << 11)))
            rows = np.array(index[first:last])
            limits = np.array(self.limits, np.uint64)[rows["source"]]
            held_out = rows["held_out"] | (rows["hash"][:, 0] >> np.uint64(11) < limits)
            rows = rows[held_out == self.held_out]
            if self.source is not None:
                rows = rows[rows["source"] == self.source]
            if len(rows):
                yield number, rows

    def _copy(
        self,
        number: int,
        numbers: npt.NDArray[np.int64],
        rows: npt.NDArray[Any],
        places: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        tokens: npt.NDArray[Any],
        mask: npt.NDArray[np.bool_],
        names: list[bytes],
    ) -> None:
        chosen = rows[numbers]
        stem = piece_stem(self.pieces, number)
        source = mapped_file(f"{stem}.tokens", tokens.dtype)
        text = mapped_file(f"{stem}.names", np.dtype(np.uint8))
        masks = mask
        if self.masked and (chosen["masked"] & (chosen["file"] == 0)).any():
            masks = mapped_file(f"{stem}.mask", np.dtype(np.bool_))
        fields = ("at", "tokens", "name_at", "name_length", "masked", "file")
        columns = (chosen[name].tolist() for name in fields)
        for number, place, start, offset, count, name_at, length, masked, file in zip(
            numbers.tolist(), places[numbers].tolist(), starts[numbers].tolist(), *columns,
            strict=True,
        ):  # fmt: skip
            names[number] = text[name_at : name_at + length].tobytes()
            if not file:
                tokens[place : place + count] = source[offset : offset + count]
            if masked and self.masked:
                if not file:  # of what stays in its file all tokens are targets
                    mask[start : start + count] = masks[offset : offset + count]
                mask[start + count] = False


def mapped_file(path: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Map a raw file, which may be empty."""
    if not os.path.getsize(path):
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))


def _repeated_name(rows: npt.NDArray[Any], names: Sequence[bytes]) -> str:
    if len(rows) < 2:
        return ""
    same = np.flatnonzero((rows["hash"][1:] == rows["hash"][:-1]).all(axis=1))
    return names[int(same[0])].decode("utf-8", "replace") if len(same) else ""


WORKER = "from setpoint.data.workers import main; main()"
ONE_CORE = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
"""One core per process: threads of libraries would compete."""


class WorkerTask(Protocol):
    """A picklable task."""

    def run(self, tokenizer: Tokenizer) -> Any:
        """Run the task."""
        ...


def _send(stream: IO[bytes], value: object) -> None:
    # Pickled straight into the stream, without a copy in memory.
    pickle.dump(value, stream, protocol=5)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    try:
        return pickle.load(stream)
    except pickle.UnpicklingError as error:  # truncated: the sender has died
        raise EOFError from error


class Workers:
    """Pool of processes, or only this process if `count` is 1; a context manager.

    Arguments:
        count: number of processes.
    """

    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        self.tokenizer = tokenizer
        # A class of the user's script cannot be imported elsewhere.
        movable = type(tokenizer).__module__ != "__main__"
        self.count = count if movable else 1
        self._local = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pool = ThreadPoolExecutor(self.count) if self.count > 1 else None
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        if self._pool is None:
            self._before = {name: os.environ.get(name) for name in ONE_CORE}
            os.environ.update(ONE_CORE)
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if self._pool is None:
            for name, value in self._before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            return
        if error is not None:
            for process in self._processes:
                process.kill()
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            if error is not None:
                process.kill()  # one that was started meanwhile
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # what was not sent yet
                        stream.close()
            process.wait()

    def run(self, works: Iterable[WorkerTask]) -> Iterator[tuple[WorkerTask, Any]]:
        """Run tasks concurrently; yield them with their results, in order.

        At most two tasks per process are in memory.

        Raises:
            SetpointError: a task failed, or a process was killed.
            OSError: a task failed.
        """
        if self._pool is None:
            for work in works:
                yield work, work.run(self.tokenizer)
            return
        waiting: list[tuple[WorkerTask, Future[Any]]] = []
        for work in works:
            waiting.append((work, self._pool.submit(self._ask, work)))
            while len(waiting) > 2 * self.count or (waiting and waiting[0][1].done()):
                first, future = waiting.pop(0)
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()

    def _ask(self, work: WorkerTask) -> Any:
        process: subprocess.Popen[bytes] | None = getattr(self._local, "process", None)
        if process is None:
            process = self._local.process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, work)
            kind, value = _receive(process.stdout)
        except (EOFError, BrokenPipeError):
            code = process.wait()
            end = f"signal {-code}" if code < 0 else f"exit status {code}"
            raise SetpointError(
                f"data.prepare: a worker process ended with {end}, as when the machine runs out "
                f"of memory.\n"
                "Valid: a smaller data.prepare.workers; finished pieces are kept."
            ) from None
        if kind == "error":
            raise value
        return value

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment |= ONE_CORE
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._processes.append(process)
        assert process.stdin is not None
        _send(process.stdin, self.tokenizer)
        return process


def main() -> None:
    """Run tasks until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with results
    stream = sys.stdin.buffer
    try:
        tokenizer = _receive(stream)
        while True:
            work = _receive(stream)
            try:
                answer = "done", work.run(tokenizer)
            except (SetpointError, OSError) as error:
                answer = "error", error
            _send(answers, answer)
    except (EOFError, BrokenPipeError):
        return
