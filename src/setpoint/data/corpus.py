"""Sources read, tokenized and laid in a row in memory: one corpus for each side."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.config.resolving.checks import describe_value
from setpoint.data.config import Data
from setpoint.data.document import Document, FileRecord, Source, TokenSource
from setpoint.data.sources.config import SourceConfig
from setpoint.data.sources.files import JSONL, format_of
from setpoint.data.sources.limits import DocumentFilter
from setpoint.data.split import split_documents, split_mixture, split_position
from setpoint.data.store import Corpus, count_bytes
from setpoint.data.tokenizers.tokenizer import TokenArray, Tokenizer
from setpoint.data.tokenizers.vocabulary import beyond_vocabulary

PIECE = 1 << 24
"""Bytes of a document that are tokenized between two reports where a tokenizer allows it."""
LARGE = 1 << 25
"""Bytes of a document above which tokenizing it whole takes seconds."""


class Show(Protocol):
    """Told how far a piece of work is, as `setpoint.track.progress.Progress.work`."""

    def __call__(self, what: str, done: int, total: int | None, now: bool = False) -> None:
        """See `setpoint.track.progress.Progress.work`."""
        ...


SHOWN = 60  # characters of a wrong value that a message repeats
WITH_NUL = "with NUL bytes, as UTF-16 read as UTF-8 has them"
BLANK = "of white space only"
RARE = 0.01
"""Share of documents of white space below which they are not worth a caution."""


def build_corpus(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    *,
    side: str,
    where: str = "data.sources",
    sources: Sequence[str] = (),
    notes: Sequence[str] = (),
    show: Show | None = None,
    read: Mapping[str, int] | None = None,
) -> Corpus:
    """Tokenize documents and lay them in a row, in the order given.

    Arguments:
        read: which number each was read at, by name; None: in the order given.
        sources: names of the sources, with which those of documents begin; none: they are of one.
        notes: see `Corpus`.

    Raises:
        SetpointError: the tokenizer cannot take a document, which is named.
    """
    row = _Row(tokenizer, len(documents))
    done, total = 0, sum(document.size for document in documents)
    what = f"tokenizing {side}, bytes"
    for number, document in enumerate(documents, start=1):
        whole = document.size >= LARGE and not getattr(tokenizer, "takes_pieces", False)
        if show is not None:
            at = f" (document {number} of {len(documents)} has {document.size / 1e6:,.0f} MB)"
            show(what + at * whole, done, total, now=whole)
        for size, piece in encoded(document, tokenizer, where):
            row.add(piece)
            done += size
            if show is not None and done < total:
                show(what, done, total)
        row.end(document.trained)
    if show is not None:
        show(what, total, total)
    files = tuple(document.record() for document in documents)
    scores = np.array([document.score for document in documents], np.float64)  # None: NaN
    tokens = np.concatenate(row.pieces)
    return Corpus(
        side=side,
        tokens=tokens,
        token_bytes=tokenizer.token_bytes,
        separator=tokenizer.separator,
        byte_count=count_bytes(tokens, tokenizer.token_bytes),
        files=files,
        digest=files_digest(tokenizer.name, files),
        sources=tuple(sources) or (side,),
        starts=row.starts,
        source=np.array([source_of(file.name, sources) for file in files], np.int64),
        trained=row.targets(),
        notes=tuple(notes),
        read_at=None if read is None else partial(_numbers, files, read),
        scores=scores.copy,
    )


def _numbers(files: Sequence[FileRecord], read: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """When documents were read; one that was cut has its place behind its name."""
    names = (file.name for file in files)
    found = [read[name] if name in read else read[name.rpartition("[")[0]] for name in names]
    return np.array(found, np.int64)


class _Row:
    """Documents as they are laid in a row."""

    def __init__(self, tokenizer: Tokenizer, documents: int) -> None:
        self.dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
        self.separator = np.array([tokenizer.separator], dtype=self.dtype)
        self.pieces: list[TokenArray] = [self.separator]
        self.starts = np.empty(documents, np.int64)
        self.length, self.number, self.begin = 1, 0, 1
        self.masks: list[tuple[int, npt.NDArray[np.bool_]]] = []

    def add(self, piece: npt.NDArray[np.integer[Any]]) -> None:
        """Append tokens of the document that is being laid."""
        self.pieces.append(piece.astype(self.dtype, copy=False))
        self.length += len(piece)

    def end(self, trained: npt.NDArray[np.bool_] | None) -> None:
        """End the document with a separator."""
        self.starts[self.number] = self.begin
        if trained is not None:
            self.masks.append((self.begin, np.append(trained, False)))
        self.pieces.append(self.separator)
        self.length += 1
        self.number, self.begin = self.number + 1, self.length

    def targets(self) -> npt.NDArray[np.bool_] | None:
        """Which tokens are targets; None: all."""
        if not self.masks:
            return None
        targets = np.ones(self.length, np.bool_)
        for start, mask in self.masks:
            targets[start : start + len(mask)] = mask
        return targets


def source_of(name: str, sources: Sequence[str]) -> int:
    """Which source a document is from: that of the longest name which its own begins with."""
    if len(sources) <= 1:
        return 0
    found = [i for i, source in enumerate(sources) if name.startswith(source)]
    return max(found, key=lambda i: len(sources[i]), default=0)


def encoded(
    document: Document, tokenizer: Tokenizer, where: str
) -> Iterator[tuple[int, npt.NDArray[np.integer[Any]]]]:
    """The tokens of a document with the bytes they are of, in pieces where that changes none.

    Raises:
        SetpointError: the tokenizer cannot take it.
    """
    if document.tokens is not None:
        yield document.size, document.tokens
        return
    step = PIECE if getattr(tokenizer, "takes_pieces", False) else max(len(document.data), 1)
    try:
        for start in range(0, max(len(document.data), 1), step):
            piece = document.data[start : start + step]
            yield len(piece), tokenizer.encode(piece)
    except SetpointError as error:
        raise SetpointError(f"{where}: the document '{document.name}': {error}") from error


def build_named_corpus(
    name: str,
    sources: Sequence[SourceConfig],
    tokenizer: Tokenizer,
    *,
    where: str,
    show: Show | None = None,
) -> Corpus:
    """Read sources and lay all of their documents in a row, for a text that is only evaluated.

    Returns:
        the corpus. Documents come in the order of the split's hash, so any first part of it is a
        fair sample of all.

    Raises:
        SetpointError: a source cannot be read, or there is no text in any.
    """
    documents: list[Document] = []
    notes: list[str] = []
    for index, source in enumerate(sources):
        for document in documents_of(source, f"{where}.{index}", tokenizer, notes):
            documents += [document] * bool(document.size)
            if show is not None:
                show(f"reading documents of {name}", len(documents), None)
    if not documents:
        raise SetpointError(
            f"{where}: no source holds a single byte of text.\nValid: a source with text."
        )
    documents.sort(key=lambda document: split_position(document.name))
    names = [source.name for source in sources]
    return build_corpus(
        documents, tokenizer, side=name, where=where, sources=names, notes=notes, show=show
    )


class Corpora(NamedTuple):
    """Both sides of the data.

    Arguments:
        train: one corpus of all sources, or of a mixture one for each.
        held_out: of all sources; None where nothing is held out.
    """

    train: tuple[Corpus, ...]
    held_out: Corpus | None


def build_corpora(
    config: Data,
    tokenizer: Tokenizer,
    mixed: bool = False,
    show: Show | None = None,
    named: Callable[..., Corpus] = build_named_corpus,
) -> Corpora:
    """Read all sources and build both sides in memory.

    Arguments:
        config: the section `data`; its streams are left out.
        mixed: whether each source gets a training corpus of its own.
        named: makes the corpus of `config.validation`, as `build_named_corpus`.

    Raises:
        SetpointError: a source cannot be read, or a side is empty.
    """
    documents: list[Document] = []
    notes: list[str] = []
    for document in read_sources(config, tokenizer, notes):
        documents.append(document)
        if show is not None:
            show("reading documents", len(documents), None)
    if not any(document.size for document in documents):
        raise SetpointError(_no_text(config))
    share = 0.0 if config.validation else config.held_out
    names = [source.name for source in config.sources]
    read = None
    if not config.is_shuffled:
        read = {document.name: number for number, document in enumerate(documents)}
    if mixed:
        of_sources: list[list[Document]] = [[] for _ in names]
        for document in documents:
            of_sources[source_of(document.name, names)].append(document)
        parts, held_out = split_mixture(of_sources, share)
        streamed = {i for i, source in enumerate(config.sources) if source.is_streamed}
        parts = [part for i, part in enumerate(parts) if i not in streamed]
        numbers = [i for i in range(len(config.sources)) if i not in streamed]
        names = [names[i] for i in numbers]
        for index, part in zip(numbers, parts, strict=True):
            if not part:
                raise SetpointError(_no_part(config, index, any(d.size for d in of_sources[index])))
    else:
        train_part, held_out = split_documents(documents, share)
        parts = [train_part]
    train: list[Corpus] = []
    for index, part in enumerate(parts):
        of = names[index : index + 1] if mixed else names
        told = () if index else notes
        train.append(
            build_corpus(
                part, tokenizer, side="train", sources=of, notes=told, show=show, read=read
            )
        )
    if config.validation:
        held = named("held_out", config.validation, tokenizer, where="data.validation", show=show)
    elif held_out:
        held = build_corpus(held_out, tokenizer, side="held_out", sources=names, show=show)
    else:
        held = None
    return Corpora(tuple(train), held)


def _no_text(config: Data) -> str:
    """Which sources hold nothing, and where they come from."""
    named = [_named_source(config, index) for index in range(len(config.sources))]
    return (
        f"data.sources: no source holds a single byte of text: {'; '.join(named)}.\n"
        "Valid: a source with text."
    )


def _no_part(config: Data, index: int, has_text: bool) -> str:
    """Why a source of a mixture has nothing to train on."""
    name = config.sources[index].name
    if has_text:
        return (
            f"data.sources.{index}: no document of '{name}' is left to train on, with "
            f"data.held_out = {config.held_out:.15g}.\n"
            "Valid: more documents, or a smaller number or share."
        )
    return (
        f"data.sources.{index}: '{name}' holds no text: {_named_source(config, index)}.\n"
        "Valid: a source with text, or a mixture without it."
    )


def _named_source(config: Data, index: int) -> str:
    """What a source reads, and where that comes from."""
    source = config.sources[index]
    name = "paths" if "paths" in type(source).__setpoint__.fields else "type"
    value, origin = describe_value(config, ("data",), f"sources.{index}.{name}")
    return f"data.sources.{index}.{name} = {value}" + (f" ({origin})" if origin else "")


def read_sources(
    config: Data, tokenizer: Tokenizer, notes: list[str] | None = None
) -> Iterator[Document]:
    """The documents of all sources but streams, one source after the other.

    Arguments:
        config: the section `data`.
        notes: see `documents_of`.

    Returns:
        an iterator; files are read as it advances.

    Raises:
        SetpointError: a source cannot be read.
    """
    for index, source in enumerate(config.sources):
        if not source.is_streamed:
            yield from documents_of(source, f"data.sources.{index}", tokenizer, notes)


def documents_of(
    section: SourceConfig, where: str, tokenizer: Tokenizer, notes: list[str] | None = None
) -> Iterator[Document]:
    """The documents of one source that its filter keeps.

    Arguments:
        notes: gets a line about what the filter left out, and cautions, at the end.

    Raises:
        SetpointError: the source cannot be read, or gives anything but documents of its name.
    """
    documents = _checked_documents(section, where, tokenizer)
    limits = None if section.filter is None else DocumentFilter(section.filter, where=where)
    texts = TextChecks(section.name)
    kept = texts.watch(documents if limits is None else limits.apply(documents))
    yield from kept if getattr(tokenizer, "separates", True) else map(_complete, kept)
    if notes is not None:
        summary = limits.summary(section.name) if limits is not None else ""
        notes += [f"filter: {summary}"] * bool(summary) + texts.cautions()


def _complete(document: Document) -> Document:
    """A document that nothing separates from others: all tokens but the first are targets."""
    if document.tokens is None or document.trained is not None:
        return document
    trained = np.broadcast_to(np.True_, len(document.tokens))
    return replace(document, trained=trained)


class TextChecks:
    """Counts texts that are legal and seldom meant: with NUL bytes, or of white space only.

    Arguments:
        source: name of their source, for messages.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.documents = 0
        self.first: dict[str, str] = {}  # names of documents
        self.counts: Counter[str] = Counter()

    def watch(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Pass documents on, and look at their texts."""
        for document in documents:
            self.documents += 1
            data = document.data
            if b"\0" in data:
                self._count(WITH_NUL, document.name)
            elif data[:1].isspace() and data.isspace():
                self._count(BLANK, document.name)
            yield document

    def _count(self, kind: str, name: str) -> None:
        self.counts[kind] += 1
        self.first.setdefault(kind, name)

    def cautions(self) -> list[str]:
        """A line for each kind of text that occurs; a rare document of white space is none."""
        if self.counts[BLANK] < RARE * self.documents:
            del self.counts[BLANK]
        return [
            f"caution: {self.source}: {count:,} of {self.documents:,} documents {kind}: "
            f"{self.first[kind]}" + (f" and {count - 1:,} more" if count > 1 else "")
            for kind, count in self.counts.items()
        ]


def _checked_documents(
    section: SourceConfig, where: str, tokenizer: Tokenizer
) -> Iterator[Document]:
    """The documents of a source, which may be a user's class, each checked."""
    source: object = section.build(where=where)
    kind = type(source)
    method = "tokenized" if hasattr(source, "tokenized") else "documents"
    title = f"{where}: {method}() of {kind.__module__}.{kind.__qualname__} gave "
    if method == "tokenized":
        found: object = cast("TokenSource", source).tokenized(tokenizer)
    else:
        found = cast("Source", source).documents()
    if not isinstance(found, Iterable):
        raise SetpointError(f"{title}{_brief(found)}.\n{WANTED_DOCUMENTS}")
    for document in cast("Iterable[object]", found):
        if not isinstance(document, Document):
            raise SetpointError(f"{title}an item that is {_brief(document)}.\n{WANTED_DOCUMENTS}")
        name, data = cast("object", document.name), cast("object", document.data)
        if not isinstance(name, str):
            raise SetpointError(
                f"{title}a document whose name is {_brief(name)}.\n{WANTED_DOCUMENTS}"
            )
        if not isinstance(data, bytes):
            hint = " Encode it: text.encode()." if isinstance(data, str) else ""
            raise SetpointError(
                f"{title}the document {name!r}, whose data is {_brief(data)}.\n"
                f"{WANTED_DOCUMENTS}{hint}"
            )
        if document.tokens is not None:
            _require_ids(document, tokenizer, where)
        if not name.startswith(section.name):
            raise SetpointError(
                f"{title}a document named {name!r}, and {where}.name = {section.name!r}.\n"
                f"Valid: names that begin with config.name, such as '{section.name}/{name}', so "
                "that those of two sources differ."
            )
        yield document


def _require_ids(document: Document, tokenizer: Tokenizer, where: str) -> None:
    tokens, trained = document.tokens, document.trained
    assert tokens is not None
    if trained is not None and trained.shape != tokens.shape:
        raise SetpointError(
            f"{where}: the document '{document.name}' has {len(tokens)} tokens, and says of "
            f"{len(trained)} whether they are trained.\nValid: one for each token."
        )
    low, high = (int(tokens.min()), int(tokens.max())) if len(tokens) else (0, 0)
    if low < 0 or high >= tokenizer.vocab_size:
        wrong = low if low < 0 else high
        at = int(np.flatnonzero(tokens == wrong)[0])
        file, _, number = document.name.partition("#")
        row = re.match(r"\d+", number)
        unit = "line" if format_of(file) == JSONL else "row"
        place = f"{file}, {unit} {int(row[0]) + 1:,}" if row else f"the document '{document.name}'"
        size = tokenizer.vocab_size
        raise SetpointError(
            f"{where}: {beyond_vocabulary(place, wrong, at, size)}.\n"
            f"Valid: 0 to {size - 1}; tokens of this tokenizer."
        )


WANTED_DOCUMENTS = (
    "Valid: an iterator of setpoint.data.document.Document(name, data), name a str that begins "
    "with config.name, data UTF-8 as bytes."
)


def _brief(value: object) -> str:
    """A value of any kind, short, with its type."""
    if value is None:
        return "None"
    text = repr(value)
    return f"{text if len(text) <= SHOWN else text[:SHOWN] + '...'}, of type {type(value).__name__}"


def files_digest(tokenizer_name: str, files: Sequence[FileRecord]) -> str:
    """One hash for a row of documents under a tokenizer.

    Returns:
        hexadecimal SHA-256. Names are length-prefixed, so no two records run together.
    """
    digest = hashlib.sha256(f"{tokenizer_name}\n".encode())
    for file in files:
        name = file.name.encode("utf-8", "surrogateescape")
        digest.update(f"{len(name)} {file.size} {file.sha256} ".encode() + name + b"\n")
    return digest.hexdigest()
