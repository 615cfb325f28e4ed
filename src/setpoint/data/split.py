"""The validation split: documents with the lowest hashes of their names are held out."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from setpoint.config import SetpointError
from setpoint.data.document import Document

FEW = 2
"""Up to so many documents are cut in two by a share, since none can be spared whole."""
LINE = 1 << 16  # how far from its place a cut may lie to be at the start of a line


class Split(NamedTuple):
    """Documents to train on and documents to evaluate on, both in the order of their hashes."""

    train: list[Document]
    held_out: list[Document]


def split_position(name: str) -> float:
    """Position of a name in [0, 1): uniform over names, and the same everywhere and always.

    Returns:
        the first 53 bits of the name's SHA-256 as a fraction, which a float represents exactly.
    """
    return (int.from_bytes(_digest(name)[:8], "big") >> 11) / 2**53


def held_out_count(documents: int, held_out: float) -> int:
    """Number of documents to hold out, at least one and not all of them.

    Arguments:
        held_out: a share below 1, or a number of documents; 0: none.

    Raises:
        SetpointError: the number leaves no document to train on.
    """
    if not held_out:
        return 0
    if held_out < 1:
        return min(max(round(held_out * documents), 1), documents - 1)
    if held_out >= documents:
        few = "a share below 1, which cuts it in two"
        if documents > 1:
            few = f"a whole number up to {documents - 1}, or a share below 1"
        what = "document" if held_out == 1 else "documents"
        raise SetpointError(
            f"data.held_out: {held_out:.15g} {what} of {documents} would leave none to train on.\n"
            f"Valid: {few}."
        )
    return int(held_out)


def split_documents(
    documents: Iterable[Document], held_out: float, divisible: bool = True
) -> Split:
    """Hold out a share or a number of documents: those whose names have the lowest hashes.

    One more document moves at most two others. Both sides come in the order of the hash, not of
    the path: neighbours in a folder resemble each other, so any first part of a side is a fair
    sample of it. By share, one or two documents are cut in two, and their ends are held out;
    conversations and other documents with a mask are never cut.

    Arguments:
        documents: with unique names; those without bytes are dropped.
        held_out: share of documents, in [0, 1), or their number; 0 holds none out.
        divisible: whether documents without a mask may be cut.

    Returns:
        both sides, neither empty unless `held_out` is 0.

    Raises:
        SetpointError: no bytes at all, two documents with one name, or an empty side.
    """
    ordered = _ordered(documents)
    split = split_group(ordered, held_out, divisible)
    if held_out and not split.held_out:
        raise SetpointError(_too_little(ordered, held_out, divisible))
    return split


def split_mixture(
    sources: Sequence[Sequence[Document]], held_out: float
) -> tuple[list[list[Document]], list[Document]]:
    """Split each source of a mixture by itself; a number of documents is of all sources together.

    Returns:
        the training documents of each source, which may be none, and the documents of all that
        are held out.

    Raises:
        SetpointError: as `split_documents`.
    """
    ordered = _ordered(document for documents in sources for document in documents)
    if held_out >= 1:
        held = ordered[: held_out_count(len(ordered), held_out)]
        names = {document.name for document in held}
        parts = [[d for d in _filled(documents) if d.name not in names] for documents in sources]
        return parts, held
    splits = [split_group(documents, held_out) for documents in sources]
    held = [document for split in splits for document in split.held_out]
    if held_out and not held:
        raise SetpointError(_too_little(ordered, held_out))
    return [split.train for split in splits], _filled(held)


def training_documents(
    read: Callable[[], Iterator[Document]], held_out: float, divisible: bool = True
) -> Iterator[Document]:
    """The training side of `split_documents` in the order of reading, without all in memory.

    Arguments:
        read: gives the documents anew at each call; they are read twice, for their names first.
        divisible: whether few may be cut; texts of conversations are none.
    """
    positions = [split_position(document.name) for document in read() if document.size]
    if held_out < 1 and len(positions) <= FEW:
        yield from split_documents(read(), held_out, divisible).train if positions else ()
        return
    count = held_out_count(len(positions), held_out)
    limit = heapq.nsmallest(count + 1, positions)[-1]
    yield from (d for d in read() if d.size and split_position(d.name) >= limit)


def _filled(documents: Iterable[Document]) -> list[Document]:
    return sorted((d for d in documents if d.size), key=lambda d: _digest(d.name))


def _ordered(documents: Iterable[Document]) -> list[Document]:
    """Documents that hold anything, by the hashes of their names, which are unique."""
    ordered = _filled(documents)
    if not ordered:
        raise SetpointError(
            "data.sources: no source holds a single byte of text.\nValid: a source with text."
        )
    for before, after in pairwise(ordered):
        if before.name == after.name:
            raise SetpointError(
                f"data.sources: two documents are called '{after.name}'.\n"
                "Valid: one name for each source, so that its documents' names differ."
            )
    return ordered


def split_group(documents: Iterable[Document], held_out: float, divisible: bool = True) -> Split:
    """`split_documents` where either side may be empty: a single conversation is trained on."""
    ordered = _filled(documents)
    if not ordered:
        return Split([], [])
    divisible = divisible and all(
        document.trained is None or bool(document.trained.all()) for document in ordered
    )
    if 0 < held_out < 1 and len(ordered) <= FEW and divisible:
        parts = [_cut(document, held_out) for document in ordered]
        ends = [part[1] for part in parts if len(part) > 1]
        return Split(_filled(part[0] for part in parts), _filled(ends))
    count = held_out_count(len(ordered), held_out)
    return Split(ordered[count:], ordered[:count])


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()


def _cut(document: Document, held_out: float) -> list[Document]:
    """A document and its end, cut at the start of a line where there is one near by.

    Returns:
        the document alone where one of both would be empty.
    """
    tokens, trained, data, name = document.tokens, document.trained, document.data, document.name
    size = len(data) if tokens is None else len(tokens)
    at = round(size * (1 - held_out))
    if tokens is None:
        line = data.find(b"\n", max(at - 1, 0), min(at + LINE, size - 1)) + 1
        # Never inside a character of UTF-8, whose bytes but the first are 10xxxxxx.
        at = line or next((p for p in range(at, size) if data[p] & 0xC0 != 0x80), size)
    if not 0 < at < size:
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
        for side in (slice(0, at), slice(at, size))
    ]


def _too_little(ordered: Sequence[Document], held_out: float, divisible: bool = True) -> str:
    """Message for documents of which none can be held out, and none can be cut."""
    first = ordered[0]
    size = f"{first.size} bytes" if first.tokens is None else f"{len(first.tokens)} tokens"
    what = f"the only document, '{first.name}', has {size}"
    if len(ordered) > 1:
        what = f"each of the {len(ordered)} documents has a few bytes, '{first.name}' {size}"
    if not divisible or first.trained is not None:
        what = f"the only document, '{first.name}', is a conversation, which is not cut"
    return (
        f"data.held_out: {held_out:g} holds nothing out: {what}.\n"
        "Valid: more documents, data.validation, or data.held_out = 0 with evaluation = null."
    )
