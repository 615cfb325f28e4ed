"""Limits on the documents of a source: their length, and which part of the source is read."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from setpoint.config import SetpointError
from setpoint.data.document import Document
from setpoint.data.sources.config import Filter


class DocumentFilter:
    """What passes a filter, counted.

    Arguments:
        where: dotted path of the source, for messages.
    """

    def __init__(self, config: Filter, *, where: str) -> None:
        self.config = config
        self.where = where
        self.counts: Counter[str] = Counter()

    def apply(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents that are kept, truncated where that is the policy.

        Raises:
            SetpointError: one is too long, and that is an error; or none is left.
        """
        is_empty = True
        for document in documents:
            limited = self.limited(document)
            if limited is not None:
                is_empty = False
                yield limited
        if self.counts["of"] and is_empty:
            raise SetpointError(
                f"{self.where}.filter: of {self.counts['of']:,} documents none is left "
                f"({self._reasons()}).\nValid: wider limits."
            )

    def limited(self, document: Document) -> Document | None:
        """The document, perhaps truncated; None where it is left out.

        Raises:
            SetpointError: it is too long, and that is an error.
        """
        self.counts["of"] += 1
        config = self.config
        length = len(document.data if document.tokens is None else document.tokens)
        if config.shards is not None:
            name = document.name.encode("utf-8", "surrogateescape")
            # Other bytes of the hash than those of the split.
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
        """Counts of what was left out or cut; empty where all were kept as they are."""
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
