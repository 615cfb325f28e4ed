"""Which documents are held out: decided by the name alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from setpoint.config import SetpointError
from setpoint.data.document import Document


class Split(NamedTuple):
    """Documents to learn from and documents to be judged on.

    Arguments:
        train: in the order of their hashes.
        held_out: in the order of their hashes.
    """

    train: list[Document]
    held_out: list[Document]


def split_position(name: str) -> float:
    """Where a name lies in [0, 1): uniform over names, and the same everywhere and always.

    Arguments:
        name: a document's name.

    Returns:
        the first 53 bits of the name's SHA-256 as a fraction, which a float holds exactly.
    """
    return (int.from_bytes(_digest(name)[:8], "big") >> 11) / 2**53


def split_documents(documents: Iterable[Document], held_out: float) -> Split:
    """Hold out the documents whose names lie below `held_out`.

    A document's side depends on its own name only: adding or removing others never moves it. Both
    sides come in the order of the hash, not of the path: neighbours in a folder resemble each
    other, so this makes any first part of a side a fair sample of it.

    Arguments:
        documents: with unique names; those without bytes are dropped.
        held_out: expected share of documents, in (0, 1).

    Returns:
        both sides, neither empty.

    Raises:
        SetpointError: no bytes at all, two documents with one name, or an empty side (with the
            values of `held_out` that would fill it).
    """
    ordered = sorted((d for d in documents if d.data), key=lambda d: _digest(d.name))
    if not ordered:
        raise SetpointError(
            "data.sources: no source holds a single byte of text.\n"
            "Valid: sources with at least two documents that are not empty."
        )
    for before, after in pairwise(ordered):
        if before.name == after.name:
            raise SetpointError(
                f"data.sources: two documents are called '{after.name}'.\n"
                "Valid: one name for each source, so that its documents' names differ."
            )
    train = [d for d in ordered if split_position(d.name) >= held_out]
    held = [d for d in ordered if split_position(d.name) < held_out]
    if not train or not held:
        raise SetpointError(_empty_side(ordered, held_out))
    return Split(train, held)


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()


def _empty_side(ordered: list[Document], held_out: float) -> str:
    low, high = split_position(ordered[0].name), split_position(ordered[-1].name)
    if len(ordered) == 1:
        return (
            f"data.sources: there is only one document, '{ordered[0].name}', and the split is by "
            f"document (data.held_out = {held_out:g}), so one side would be empty.\n"
            "Valid: two documents or more; a text source's 'separator' divides a file into several."
        )
    side = "held-out" if held_out <= low else "training"
    return (
        f"data.held_out: {held_out:g} leaves the {side} side empty: the {len(ordered)} documents' "
        f"names lie between {low:.4f} and {high:.4f}.\n"
        f"Valid: a value above {low:.4f} and up to {high:.4f}, or more documents."
    )
