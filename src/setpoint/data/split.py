"""Which documents are held out: decided by the name alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from setpoint.config import SetpointError
from setpoint.data.document import Document

# What a message proposes; usual ones first, then whatever lies between two names.
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, *(share / 1000 for share in range(1, 1000)))
LINE = 1 << 16  # how far from its place a cut may lie to be at the start of a line


class Split(NamedTuple):
    """Documents to train on and documents to evaluate on.

    Arguments:
        held_out: in the order of their hashes; empty where nothing is held out.
    """

    train: list[Document]
    held_out: list[Document]


def split_position(name: str) -> float:
    """Where a name lies in [0, 1): uniform over names, and the same everywhere and always.

    Returns:
        the first 53 bits of the name's SHA-256 as a fraction, which a float holds exactly.
    """
    return (int.from_bytes(_digest(name)[:8], "big") >> 11) / 2**53


def require_more(documents: int, held_out: float) -> None:
    """Refuse to hold out a number of documents that leaves none to train on.

    Raises:
        SetpointError: there are no more documents than are held out.
    """
    if held_out >= documents:
        few = "a share below 1, which cuts it in two"
        if documents > 1:
            few = f"a whole number up to {documents - 1}, or a share below 1"
        what = "document" if held_out == 1 else "documents"
        raise SetpointError(
            f"data.held_out: {held_out:.15g} {what} of {documents} would leave none to train on.\n"
            f"Valid: {few}."
        )


def split_documents(documents: Iterable[Document], held_out: float) -> Split:
    """Hold out the documents whose names lie below `held_out`, or as many with the lowest ones.

    By share, a document's side depends on its own name only: adding or removing others never moves
    it. By number, one more document moves at most one other, out of the held-out ones. Both sides
    come in the order of the hash, not of the path: neighbours in a folder resemble each other, so
    this makes any first part of a side a fair sample of it. A single document is cut in two by
    share, and its end is held out.

    Arguments:
        documents: with unique names; those without bytes are dropped.
        held_out: expected share of documents, in [0, 1), or their number; 0 holds none out.

    Returns:
        both sides, neither empty unless `held_out` is 0.

    Raises:
        SetpointError: no bytes at all, two documents with one name, or an empty side (with the
            values of `held_out` that would fill it).
    """
    ordered = _ordered(documents)
    if 0 < held_out < 1 and len(ordered) == 1:
        return _cut(ordered[0], held_out)
    held_out = _limit(ordered, held_out)
    split = _by_name(ordered, held_out)
    if not split.train or (held_out and not split.held_out):
        raise SetpointError(_of_names(ordered, held_out))
    return split


def split_mixture(
    sources: Sequence[Sequence[Document]], held_out: float
) -> tuple[list[list[Document]], list[Document]]:
    """Split each source of a mixture by itself, so that a single document of one is cut, too.

    A number of documents is of all sources together, and cuts none.

    Returns:
        the training documents of each source, which may be none, and the documents of all that
        are held out.

    Raises:
        SetpointError: as `split_documents`.
    """
    ordered = _ordered(document for documents in sources for document in documents)
    by_number, held_out = held_out >= 1, _limit(ordered, held_out)
    train: list[list[Document]] = []
    held: list[Document] = []
    for documents in sources:
        filled = sorted((d for d in documents if d.size), key=lambda d: _digest(d.name))
        cut = held_out and not by_number and len(filled) == 1
        split = _cut(filled[0], held_out) if cut else _by_name(filled, held_out)
        train.append(split.train)
        held += split.held_out
    if held_out and not held:
        raise SetpointError(_of_names(ordered, held_out))
    return train, sorted(held, key=lambda d: _digest(d.name))


def _ordered(documents: Iterable[Document]) -> list[Document]:
    """Documents that hold anything, by the hashes of their names, which are unique."""
    ordered = sorted((d for d in documents if d.size), key=lambda d: _digest(d.name))
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


def _limit(ordered: Sequence[Document], held_out: float) -> float:
    """The position below which documents are held out, by share or by number."""
    if held_out < 1:
        return held_out
    require_more(len(ordered), held_out)
    return split_position(ordered[int(held_out)].name)


def _by_name(documents: list[Document], held_out: float) -> Split:
    return Split(
        [d for d in documents if split_position(d.name) >= held_out],
        [d for d in documents if split_position(d.name) < held_out],
    )


def _of_names(ordered: list[Document], held_out: float) -> str:
    ends = split_position(ordered[0].name), split_position(ordered[-1].name)
    return empty_side(*ends, len(ordered), held_out)


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()


def _cut(document: Document, held_out: float) -> Split:
    """Hold out the end of a document, from the start of a line where there is one near by."""
    if document.tokens is not None:
        return _cut_tokens(document, held_out)
    data = document.data
    wanted = round(len(data) * (1 - held_out))
    at = data.find(b"\n", max(wanted - 1, 0), min(wanted + LINE, len(data) - 1)) + 1
    if not at:
        # Never inside a sign of UTF-8, whose bytes but the first are 10xxxxxx.
        at = next((p for p in range(wanted, len(data)) if data[p] & 0xC0 != 0x80), len(data))
    _require_sides(document, held_out, at, len(data), "bytes")
    name = document.name
    return Split(
        [Document(f"{name}[0:{at}]", data[:at])],
        [Document(f"{name}[{at}:{len(data)}]", data[at:])],
    )


def _cut_tokens(document: Document, held_out: float) -> Split:
    tokens, trained = document.tokens, document.trained
    assert tokens is not None
    at = round(len(tokens) * (1 - held_out))
    _require_sides(document, held_out, at, len(tokens), "tokens")
    sides = (
        Document(
            f"{document.name}[{side.start}:{side.stop}]",
            tokens=tokens[side],
            trained=None if trained is None else trained[side],
        )
        for side in (slice(0, at), slice(at, len(tokens)))
    )
    return Split(*([side] for side in sides))


def _require_sides(document: Document, held_out: float, at: int, size: int, unit: str) -> None:
    if not 0 < at < size:
        raise SetpointError(
            f"data.held_out: {held_out:g} of '{document.name}', the only document of its source, "
            f"which has {size} {unit}, leaves one side empty.\n"
            "Valid: more text, or data.held_out = 0."
        )


def empty_side(low: float, high: float, documents: int, held_out: float) -> str:
    """Why a side is empty, where documents lie between two positions."""
    side = "held-out" if held_out <= low else "training"
    text = (
        f"data.held_out: {held_out:g} leaves the {side} side empty: the {documents} documents' "
        f"names lie between {low:.4f} and {high:.4f}.\n"
        f"Valid: a value above {low:.4f} and up to {high:.4f}, or more documents."
    )
    fitting = next((share for share in SHARES if low < share <= high), None)
    return text if fitting is None else f"{text} For instance: --data.held_out {fitting:g}"
