"""Rows of a batch as people read them: tokens as text, with masks and documents."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from setpoint.data.sequences import NamedRows, Rows, Sequences
from setpoint.data.tokenizers.tokenizer import Tokenizer
from setpoint.data.tokenizers.vocabulary import ChatFacts
from setpoint.shapes.batch import IGNORE_INDEX, Batch


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a row.

    Arguments:
        data: the bytes it stands for; those of its name for a control token.
        control: whether it stands for no text.
        trained: whether the model is to predict it in this row.
        document: number of its document in the row, from 0; None for padding.
        position: its position id.
    """

    id: int
    data: bytes
    control: bool
    trained: bool
    document: int | None
    position: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A row of a batch.

    Arguments:
        number: in the stream of training rows, from 0.
        source: name of its source; None where that is not known.
        names: of its documents, by their numbers; None where they are not known.
    """

    number: int
    source: str | None
    tokens: tuple[Token, ...]
    names: tuple[str | None, ...]

    @property
    def trained(self) -> int:
        """How many of its tokens are predicted."""
        return sum(token.trained for token in self.tokens)

    @property
    def documents(self) -> int:
        """How many documents it holds text of."""
        return len(self.names)

    def to_json(self) -> dict[str, Any]:
        """All of it, for machines; text that is part of a character has U+FFFD in its place."""
        return {
            "row": self.number,
            "source": self.source,
            "ids": [token.id for token in self.tokens],
            "text": [token.data.decode(errors="replace") for token in self.tokens],
            "trained": [token.trained for token in self.tokens],
            "documents": list(self.names),
            "document": [token.document for token in self.tokens],
            "position": [token.position for token in self.tokens],
        }


def samples_of(
    sequences: Sequences, rows: Rows, tokenizer: Tokenizer, first: int
) -> Iterator[Sample]:
    """Rows, each with the last target of each document that is not read, or is in no other.

    Arguments:
        first: number of the first row in the stream.
    """
    batch = sequences.rows(rows)
    facts = getattr(tokenizer, "chat", None)
    controls = facts.controls if isinstance(facts, ChatFacts) else ()
    names = {facts.tokens[text]: text for text in controls} if facts else {}
    documents = _documents(sequences, rows, batch, tokenizer.separator)
    for row, own in enumerate(documents):
        inputs: list[int] = batch.inputs[row].tolist()
        targets: list[int] = batch.targets[row].tolist()
        places = range(len(inputs)) if batch.positions is None else batch.positions[row].tolist()
        shown: list[tuple[int, int, int, bool]] = []  # token, column, position, trained
        trained = False  # whether the token is the target of the one before
        for at, (token, target) in enumerate(zip(inputs, targets, strict=True)):
            shown.append((token, at, places[at], trained))
            trained = target != IGNORE_INDEX
            ends = at + 1 == len(inputs) or own[at + 1] is None
            ends = ends or (own[at + 1] != own[at] and places[at + 1] != places[at] + 1)
            if trained and (ends or inputs[at + 1] != target):
                shown.append((target, at, places[at] + 1, trained))
                trained = False
        numbers: dict[Hashable, int] = {}
        tokens: list[Token] = []
        for token, at, place, trained in shown:
            padding = place < 0 or own[at] is None
            number = None if padding else numbers.setdefault(own[at], len(numbers))
            data = tokenizer.decode([token])
            control = token == tokenizer.separator or token in names or not data
            if control:
                data = names.get(token, "<|separator|>").encode()
            tokens.append(Token(token, data, control, trained, number, place))
        named = tuple(name if isinstance(name, str) else None for name in numbers)
        source = None if batch.source is None else sequences.sources[int(batch.source[row])]
        yield Sample(first + row, source, tuple(tokens), named)


def _documents(
    sequences: Sequences, rows: Rows, batch: Batch, separator: int
) -> list[list[Hashable]]:
    """What tells the documents of each row apart: a name, a number, or what separators divide."""
    known = sequences.names_in(rows) if isinstance(sequences, NamedRows) else None
    found: list[list[Hashable]] = []
    for at, inputs in enumerate(batch.inputs.tolist()):
        names = known[at] if known is not None else None
        if names is not None:
            found.append(list(names))
        elif batch.documents is not None:
            found.append(batch.documents[at].tolist())
        else:
            found.append(_divided(inputs, separator))
    return found


def _divided(row: list[int], separator: int) -> list[Hashable]:
    number, own = 0, list[Hashable]()
    for at, token in enumerate(row):
        number += at > 1 and row[at - 1] == separator != token
        own.append(number)
    return own
