"""Documents of sources: read, checked, filtered, and split into training and validation data.

The documents with the lowest hashes of their names are held out.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from setpoint.config import SetpointError, plural, to_plain
from setpoint.config.resolving.checks import describe_value
from setpoint.data.document import Document
from setpoint.data.sources.config import Filter, SourceConfig
from setpoint.data.sources.files import JSONL, format_of
from setpoint.data.vocabulary import beyond_vocabulary

if TYPE_CHECKING:
    from setpoint.data.config import Data
    from setpoint.data.tokenizer import Tokenizer

WITH_NUL = "with NUL bytes, as in UTF-16 read as UTF-8"
BLANK = "with only whitespace"
RARE = 0.01
"""Fraction of blank documents below which there is no caution."""
FEW = 2
"""Number of documents up to which they are cut in two, since none can be held out whole."""
LINE = 1 << 16  # maximum distance from a cut to the start of a line
MIXING = ("weight", "epochs")
"""Fields of a source that say how often it is read, not what it reads."""


@dataclass(frozen=True, slots=True)
class CorpusRequest:
    """The sources to read, and the division of their documents into corpora.

    Arguments:
        side: side of the documents that are not held out.
        where: path of `sources` in the job, for messages.
        held_out: fraction of documents to hold out, or their number.
        mixed: whether each source gets its own corpus, as in a mixture.
        numbers: indices of `sources` in the list at `where`; empty: 0, 1, 2, ...
        in_place: whether to map token files in place and store only an index of them.
    """

    side: str
    sources: tuple[SourceConfig, ...]
    where: str
    held_out: float = 0.0
    mixed: bool = False
    numbers: tuple[int, ...] = ()
    in_place: bool = False

    def where_of(self, index: int) -> str:
        """Path of a source in the job."""
        return f"{self.where}.{self.numbers[index] if self.numbers else index}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources."""
        return tuple(source.name for source in self.sources)

    def described(self) -> dict[str, Any]:
        """The request as plain data, for records and keys; file contents are not part of it."""
        sources = [
            {name: value for name, value in to_plain(source).items() if name not in MIXING}
            for source in self.sources
        ]
        kinds = [type(source).__qualname__ for source in self.sources]
        local_paths: dict[str, Any] = {}
        if self.in_place:  # an index holds paths, which are those of one machine
            paths = (path for source in self.sources for path in getattr(source, "paths", ()))
            local_paths = {"paths": [os.path.abspath(os.path.expanduser(path)) for path in paths]}
        return {
            **local_paths,
            "side": self.side,
            "sources": [
                {"kind": kind, **source} for kind, source in zip(kinds, sources, strict=True)
            ],
            "held_out": self.held_out,
            "mixed": self.mixed,
        }

    def most_tokens(self) -> int | None:
        """Upper bound on the tokens of all sources; None: unknown."""
        sizes = [source.most_tokens() for source in self.sources]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def inputs(self) -> list[str] | None:
        """A line for each file or table, with a state that changes with its content.

        Returns:
            None if a source cannot report changes.
        """
        lines: list[str] = []
        for index, source in enumerate(self.sources):
            built: object = source.build(where=self.where_of(index))
            inputs = getattr(built, "inputs", None)
            if inputs is None:
                return None
            listed = cast("Callable[[], Iterable[str] | None]", inputs)()
            if listed is None:
                return None
            lines += listed
        return lines

    def no_text(self) -> SetpointError:
        """Error for sources without text."""
        read = "; ".join(self._input_field(index) for index in range(len(self.sources)))
        return SetpointError(
            f"{self.where}: the sources have no text: {read}.\n"
            "Valid: at least one source with text."
        )

    def no_documents(self, index: int, has_text: bool) -> SetpointError:
        """Error for a source in a mixture without training documents.

        Arguments:
            has_text: whether the source has text, all of which is held out.
        """
        where, name = self.where_of(index), self.names[index]
        if has_text:
            return SetpointError(
                f"{where}: data.held_out = {self.held_out:.15g} leaves no training document of "
                f"'{name}'.\nValid: more documents, or a smaller number or fraction."
            )
        return SetpointError(
            f"{where}: '{name}' has no text: {self._input_field(index)}.\n"
            "Valid: a source with text, or a mixture without this source."
        )

    def _input_field(self, index: int) -> str:
        """The field that names a source's input, with its value and origin."""
        source, where = self.sources[index], self.where_of(index)
        name = "paths" if "paths" in type(source).__setpoint__.fields else "type"
        value, origin = describe_value(source, tuple(where.split(".")), name)
        return f"{where}.{name} = {value}" + (f" ({origin})" if origin else "")


def requests_of(config: Data) -> list[CorpusRequest]:
    """Requests for the training sources that are not streamed, and for `data.validation`."""
    share = 0.0 if config.validation else config.held_out
    numbers = tuple(i for i, source in enumerate(config.sources) if not source.is_streamed)
    sources = tuple(config.sources[number] for number in numbers)
    requests = [CorpusRequest("train", sources, "data.sources", share, config.is_mixture, numbers)]
    if config.validation:
        requests.append(CorpusRequest("held_out", config.validation, "data.validation"))
    return requests


def source_of(name: str, sources: Sequence[str]) -> int:
    """Index of a document's source: the longest source name that is a prefix of its name."""
    if len(sources) <= 1:
        return 0
    matches = [i for i, source in enumerate(sources) if name.startswith(source)]
    return max(matches, key=lambda i: len(sources[i]), default=0)


def documents_of(
    section: SourceConfig, where: str, tokenizer: Tokenizer, notes: list[str] | None = None
) -> Iterator[Document]:
    """The filtered documents of a source.

    Arguments:
        notes: receives messages about dropped documents and cautions, once reading has ended.

    Raises:
        SetpointError: the source cannot be read, or a document is not named after it.
    """
    documents = _named_documents(section, where, tokenizer)
    limits = None if section.filter is None else DocumentFilter(section.filter, where=where)
    separates, total = getattr(tokenizer, "separates", True), 0
    counts, first = Counter[str](), dict[str, str]()  # of suspicious documents
    for document in documents if limits is None else limits.apply(documents):
        total, data = total + 1, document.data
        is_blank = data[:1].isspace() and data.isspace()
        if is_blank or b"\0" in data:
            kind = BLANK if is_blank else WITH_NUL
            counts[kind] += 1
            first.setdefault(kind, document.name)
        yield document if separates else _complete(document)
    if notes is None:
        return
    if limits is not None and (summary := limits.summary(section.name)):
        notes.append(f"filter: {summary}")
    for kind, count in counts.items():
        if kind != BLANK or count >= RARE * total:
            more = f" and {count - 1:,} more" if count > 1 else ""
            notes.append(
                f"caution: {section.name}: {count:,} of {total:,} documents {kind}: "
                f"{first[kind]}{more}"
            )


def _complete(document: Document) -> Document:
    """The document as a complete one, for tokenizers without a separator."""
    if document.tokens is None or document.trained is not None:
        return document
    trained = np.broadcast_to(np.True_, len(document.tokens))
    return replace(document, trained=trained)


def _named_documents(section: SourceConfig, where: str, tokenizer: Tokenizer) -> Iterator[Document]:
    """The documents of a source, whose names and token ids are checked."""
    source: Any = section.build(where=where)
    has_tokens = hasattr(source, "tokenized")
    for document in source.tokenized(tokenizer) if has_tokens else source.documents():
        if isinstance(document.data, str):  # the likeliest mistake in a custom source
            raise SetpointError(
                f"{where}: the data of the document {document.name!r} is a str.\n"
                "Valid: bytes, such as text.encode()."
            )
        if document.tokens is not None:
            _require_ids(document, tokenizer, where)
        if not document.name.startswith(section.name):
            raise SetpointError(
                f"{where}: the document {document.name!r} is not named after {where}.name = "
                f"{section.name!r}.\nValid: names that begin with config.name, such as "
                f"'{section.name}/{document.name}', so that names differ between sources."
            )
        yield document


def _require_ids(document: Document, tokenizer: Tokenizer, where: str) -> None:
    tokens, trained = document.tokens, document.trained
    assert tokens is not None
    if trained is not None and trained.shape != tokens.shape:  # masks of others would shift
        raise SetpointError(
            f"{where}: the document '{document.name}' has {plural(len(tokens), 'token')} and "
            f"{len(trained)} entries in `trained`.\nValid: one entry for each token."
        )
    low, high = (int(tokens.min()), int(tokens.max())) if len(tokens) else (0, 0)
    if low < 0 or high >= tokenizer.vocab_size:
        wrong = low if low < 0 else high
        index = int(np.flatnonzero(tokens == wrong)[0])
        file, _, number = document.name.partition("#")
        row = re.match(r"\d+", number)
        unit = "line" if format_of(file) == JSONL else "row"
        place = f"{file}, {unit} {int(row[0]) + 1:,}" if row else f"the document '{document.name}'"
        size = tokenizer.vocab_size
        raise SetpointError(
            f"{where}: {beyond_vocabulary(place, wrong, index, size)}.\n"
            f"Valid: 0 to {size - 1}; tokens of this tokenizer."
        )


class DocumentFilter:
    """A filter of documents that counts those it drops or truncates.

    Arguments:
        where: dotted path of the source, for messages.
    """

    def __init__(self, config: Filter, *, where: str) -> None:
        self.config = config
        self.where = where
        self.counts: Counter[str] = Counter()

    def apply(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents within the limits, or truncated to them.

        Raises:
            SetpointError: a document is too long with `too_long = "error"`, or no document is left.
        """
        is_empty = True
        for document in documents:
            limited = self.limited(document)
            if limited is not None:
                is_empty = False
                yield limited
        if self.counts["of"] and is_empty:
            raise SetpointError(
                f"{self.where}.filter: of {self.counts['of']:,} documents, none remain "
                f"({self._reasons()}).\nValid: wider limits."
            )

    def limited(self, document: Document) -> Document | None:
        """The document, possibly truncated; None if it is dropped.

        Raises:
            SetpointError: the document is too long with `too_long = "error"`.
        """
        self.counts["of"] += 1
        config = self.config
        length = len(document.data if document.tokens is None else document.tokens)
        if config.shards is not None:
            name = document.name.encode("utf-8", "surrogateescape")
            # Independent of the split, which uses other bytes of the hash.
            number = int.from_bytes(hashlib.sha256(name).digest()[8:16], "big")
            if number % config.shards != config.shard:
                self.counts["of other shards"] += 1
                return None
        if length < config.shortest:
            self.counts["too short"] += 1
            return None
        if config.longest is None or length <= config.longest:
            return document
        if config.too_long == "error":
            unit = "bytes" if document.tokens is None else "tokens"
            raise SetpointError(
                f"{self.where}.filter.longest: the document '{document.name}' has {length:,} "
                f"{unit}, more than {config.longest:,}.\n"
                "Valid: a higher limit, or too_long = 'truncate' or 'drop'."
            )
        if config.too_long == "drop":
            self.counts["too long"] += 1
            return None
        self.counts["truncated"] += 1
        return _truncated(document, config.longest)

    def summary(self, name: str) -> str:
        """Message about dropped and truncated documents; empty if there are none."""
        reasons = self._reasons()
        return f"{name}: of {self.counts['of']:,} documents {reasons}" if reasons else ""

    def _reasons(self) -> str:
        names = ("too short", "too long", "of other shards", "truncated")
        return ", ".join(f"{self.counts[n]:,} {n}" for n in names if self.counts[n])


def _truncated(document: Document, length: int) -> Document:
    if document.tokens is not None:
        trained = document.trained
        mask = None if trained is None else trained[:length]
        return replace(document, tokens=document.tokens[:length], trained=mask)
    while length and document.data[length] & 0xC0 == 0x80:  # inside a character
        length -= 1
    return replace(document, data=document.data[:length])


def split_position(name: str) -> float:
    """Position of a name in [0, 1); names are uniformly distributed.

    Returns:
        the first 53 bits of the name's SHA-256 as a fraction, exact as a float.
    """
    return (int.from_bytes(_digest(name)[:8], "big") >> 11) / 2**53


def held_out_count(documents: int, held_out: float) -> int:
    """Number of documents to hold out, at least one and not all of them.

    Arguments:
        held_out: fraction below 1, or number of documents; 0: none.

    Raises:
        SetpointError: the number leaves no document for training.
    """
    if not held_out:
        return 0
    if held_out < 1:
        return min(max(round(held_out * documents), 1), documents - 1)
    if held_out >= documents:
        few = f"1 to {documents - 1}, or a share below 1" if documents > 1 else "a share below 1"
        raise SetpointError(
            f"data.held_out: {held_out:.15g} of {plural(documents, 'document')} "
            f"would leave none for training.\nValid: {few}."
        )
    return int(held_out)


def split_documents(
    sources: Sequence[Iterable[Document]],
    held_out: float,
    divisible: bool = True,
    where: str = "data.sources",
) -> tuple[list[list[Document]], list[Document]]:
    """Hold out the documents with the lowest name hashes: a fraction or a number of them.

    A fraction applies to each source of a mixture, a number to all sources together. Adding a
    document moves at most two others. Both sides are in the order of the hash, not of the path:
    neighbors in a folder resemble each other, whereas any first part of a side in hash order is a
    fair sample. With a fraction, one or two documents are cut in two, and their ends are held out;
    documents with a target mask, such as conversations, are never cut.

    Arguments:
        sources: documents with unique names, by mixture source; empty documents are dropped.
        held_out: fraction of documents, in [0, 1), or their number; 0: none.
        divisible: whether documents without a mask may be cut.

    Returns:
        the training documents of each source, perhaps none, and all held-out documents, at least
        one unless `held_out` is 0 or there is no text.

    Raises:
        SetpointError: two documents have the same name, or a side is empty.
    """
    filled = [_filled(documents) for documents in sources]
    ordered = _filled(chain.from_iterable(filled))
    for before, after in pairwise(ordered):
        if before.name == after.name:
            raise duplicate_name(where, after.name)
    if held_out >= 1:
        validation = ordered[: held_out_count(len(ordered), held_out)]
        names = {document.name for document in validation}
        return [[d for d in group if d.name not in names] for group in filled], validation
    splits = [split_group(group, held_out, divisible) for group in filled]
    validation = _filled(document for _, held_out_part in splits for document in held_out_part)
    if held_out and ordered and not validation:
        raise SetpointError(_too_little(ordered, held_out, divisible))
    return [train for train, _ in splits], validation


def training_documents(
    read: Callable[[], Iterator[Document]], held_out: float, divisible: bool = True
) -> Iterator[Document]:
    """Training side of `split_documents` for one source in reading order, in bounded memory.

    Arguments:
        read: returns a new iterator of the documents; they are read twice, first for their names.
        divisible: whether documents may be cut; False for texts of conversations.
    """
    positions = [split_position(document.name) for document in read() if document.size]
    if held_out < 1 and len(positions) <= FEW:
        yield from split_documents([read()], held_out, divisible)[0][0]
        return
    count = held_out_count(len(positions), held_out)
    limit = heapq.nsmallest(count + 1, positions)[-1]
    yield from (d for d in read() if d.size and split_position(d.name) >= limit)


def _filled(documents: Iterable[Document]) -> list[Document]:
    return sorted((d for d in documents if d.size), key=lambda d: _digest(d.name))


def duplicate_name(where: str, name: str) -> SetpointError:
    """Error for two documents with the same name."""
    return SetpointError(
        f"{where}: two documents are named '{name}'.\n"
        "Valid: a unique name for each document, which begins with the name of its source."
    )


def split_group(
    documents: Iterable[Document], held_out: float, divisible: bool = True
) -> tuple[list[Document], list[Document]]:
    """Training and held-out documents of one source, both in the order of their hashes.

    A side may be empty: a single conversation is used for training.
    """
    ordered = _filled(documents)
    if not ordered:
        return [], []
    divisible = divisible and all(
        document.trained is None or bool(document.trained.all()) for document in ordered
    )
    if 0 < held_out < 1 and len(ordered) <= FEW and divisible:
        parts = [_cut(document, held_out) for document in ordered]
        ends = [part[1] for part in parts if len(part) > 1]
        return _filled(part[0] for part in parts), _filled(ends)
    count = held_out_count(len(ordered), held_out)
    return ordered[count:], ordered[:count]


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()


def _cut(document: Document, held_out: float) -> list[Document]:
    """Cut off the end of a document, preferably at the start of a line.

    Returns:
        both parts, or the document alone if one of them would be empty.
    """
    tokens, trained, data, name = document.tokens, document.trained, document.data, document.name
    size = len(data) if tokens is None else len(tokens)
    position = round(size * (1 - held_out))
    if tokens is None:
        line = data.find(b"\n", max(position - 1, 0), min(position + LINE, size - 1)) + 1
        # Never inside a character of UTF-8, whose bytes but the first are 10xxxxxx.
        position = line or next((p for p in range(position, size) if data[p] & 0xC0 != 0x80), size)
    if not 0 < position < size:
        return [document]
    place = document.place
    return [
        Document(
            f"{name}[{side.start}:{side.stop}]",
            data[side] if tokens is None else b"",
            None if tokens is None else tokens[side],
            None if trained is None else trained[side],
            document.score,
            place and place._replace(first=place.first + side.start),
        )
        for side in (slice(0, position), slice(position, size))
    ]


def _too_little(ordered: Sequence[Document], held_out: float, divisible: bool) -> str:
    """Message about documents that are too few to hold out or to cut."""
    first = ordered[0]
    size = plural(first.size, "byte")
    if first.tokens is not None:
        size = plural(len(first.tokens), "token")
    reason = f"the only document, '{first.name}', has {size}"
    if len(ordered) > 1:
        reason = f"each of the {len(ordered)} documents has a few bytes, '{first.name}' {size}"
    if not divisible or first.trained is not None:
        reason = f"the only document, '{first.name}', is a conversation, which is not split"
    return (
        f"data.held_out: {held_out:g} holds nothing out: {reason}.\n"
        "Valid: more documents, data.validation, or data.held_out = 0 with evaluation = null."
    )
