"""What training and evaluation see of a text: sequences by number, and what text it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from setpoint.data.store import DataIdentity

if TYPE_CHECKING:
    from setpoint.shapes.batch import Batch


Rows = Any
"""Which rows, as their sequences understand it: an array of numbers, a list of documents to pack;
something that has a length and can be sliced."""


class Sequences(Protocol):
    """Rows of equal length, made when they are named."""

    @property
    def sequence_length(self) -> int:
        """Tokens that the model reads of each, S."""
        ...

    @property
    def identity(self) -> DataIdentity:
        """What they are sequences of."""
        ...

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources, which `Batch.source` counts from 0."""
        ...

    @property
    def epoch_rows(self) -> int | None:
        """Rows of an epoch; None: of a stream, whose end is not known."""
        ...

    def rows(self, rows: Rows) -> Batch:
        """Some of them as a batch."""
        ...

    def describe(self, rows: Rows) -> str:
        """Name documents of some of them, for messages."""
        ...


class CountedSequences(Sequences, Protocol):
    """Sequences that have numbers, from 0."""

    def __len__(self) -> int:
        """How many there are."""
        ...


@runtime_checkable
class NamedRows(Protocol):
    """Sequences that know of what documents their rows are, for `setpoint data inspect`."""

    def names_in(self, rows: Rows) -> Sequence[Sequence[str | None] | None]:
        """The name of the document of each of the S + 1 tokens of each row.

        None for padding, and for a row of which it is not known.
        """
        ...
