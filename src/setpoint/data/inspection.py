"""Statistics, duplicates and decoded rows of a job's data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from setpoint.data.corpus import Corpus
from setpoint.data.order import Rows
from setpoint.data.rows import Sequences
from setpoint.data.tokenizer import Tokenizer
from setpoint.data.vocabulary import ChatFacts
from setpoint.shapes.batch import IGNORE_INDEX

PERCENTILES = (5, 25, 50, 75, 95, 99)


def lengths_of(corpus: Corpus) -> npt.NDArray[np.int64]:
    """(documents,) number of tokens of each document, without separators."""
    ends = np.append(corpus.starts[1:], len(corpus.tokens)) - 1
    return ends - corpus.starts


def trained_tokens(corpus: Corpus) -> npt.NDArray[np.int64]:
    """(documents,) number of targets of each document, without separators."""
    lengths = lengths_of(corpus)
    if corpus.trained is None:
        return lengths
    return np.array(
        [
            int(np.count_nonzero(corpus.trained[int(start) : int(start + length)]))
            for start, length in zip(corpus.starts, lengths, strict=True)
        ],
        np.int64,
    )


def text_bytes(corpus: Corpus, selected: npt.NDArray[np.bool_]) -> int:
    """Bytes of text of the selected documents."""
    ends = corpus.starts + lengths_of(corpus)
    spans = zip(corpus.starts[selected].tolist(), ends[selected].tolist(), strict=True)
    return sum(int(corpus.token_bytes[corpus.tokens[start:end]].sum()) for start, end in spans)


def source_stats(
    corpora: Sequence[Corpus], names: Sequence[str], sequence_length: int
) -> list[dict[str, Any]]:
    """Statistics of each source, in the order of `names`.

    Arguments:
        corpora: corpora of one side; sources may share one.
    """
    total = sum(int(lengths_of(corpus).sum()) for corpus in corpora)
    stats: list[dict[str, Any]] = []
    for name in names:
        lengths, trained, size, hashes = [], 0, 0, list[str]()
        for corpus in corpora:
            if name not in corpus.sources:
                continue
            selected = corpus.source == corpus.sources.index(name)
            lengths.append(lengths_of(corpus)[selected])
            trained += int(trained_tokens(corpus)[selected].sum())
            files = [corpus.files[int(index)] for index in np.flatnonzero(selected)]
            size += text_bytes(corpus, selected)
            hashes += [file.sha256 for file in files]
        joined = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
        tokens = int(joined.sum())
        stats.append(
            {
                "source": name,
                "documents": len(joined),
                "bytes": size,
                "tokens": tokens,
                "trained_tokens": trained,
                "share": tokens / total if total else 0.0,
                "lengths": percentiles(joined),
                "longer_than_sequence": int((joined > sequence_length).sum()),
                "duplicates": len(hashes) - len(set(hashes)),
            }
        )
    return stats


def percentiles(lengths: npt.NDArray[np.int64]) -> dict[str, float]:
    """Mean, minimum, maximum and percentiles, in tokens; empty if there are no documents."""
    if not len(lengths):
        return {}
    between = np.percentile(lengths, PERCENTILES)
    return {
        "mean": float(lengths.mean()),
        "min": int(lengths.min()),
        **{f"p{p}": float(value) for p, value in zip(PERCENTILES, between, strict=True)},
        "max": int(lengths.max()),
    }


def duplicates(corpora: Sequence[Corpus], held_out: Corpus | None) -> dict[str, Any]:
    """Find duplicate documents by the hash of their content.

    Arguments:
        corpora: training data.
        held_out: held-out data, which is compared with the training data.

    Returns:
        the number of `groups` of equal documents, the number of redundant `documents`, `examples`
        of names, and the number of held-out documents that are also in the training data.
    """
    files = [file for corpus in corpora for file in corpus.files]
    counts = Counter(file.sha256 for file in files)
    repeated = {digest for digest, count in counts.items() if count > 1}
    names: dict[str, list[str]] = {}
    for file in files:
        if file.sha256 in repeated and (len(names) < 3 or file.sha256 in names):
            names.setdefault(file.sha256, []).append(file.name)
    leaked = [file for file in held_out.files if file.sha256 in counts] if held_out else []
    return {
        "groups": len(repeated),
        "documents": sum(counts[digest] - 1 for digest in repeated),
        "examples": [group[:3] for group in names.values()],
        "held_out_in_training": len(leaked),
    }


def histogram(lengths: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Histogram of lengths in classes that double in width: (from, up to, documents) each."""
    if not len(lengths):
        return []
    classes = np.frexp(np.maximum(lengths, 0))[1]  # 0: 0; 1: 1; 2: 2 and 3; 3: 4 to 7
    counts = np.bincount(classes)
    first = int(np.flatnonzero(counts)[0])
    return [
        (0 if k == 0 else 1 << (k - 1), 0 if k == 0 else (1 << k) - 1, int(count))
        for k, count in enumerate(counts.tolist())
        if k >= first
    ]


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a row.

    Arguments:
        data: bytes of its text; for a control token, of its name.
        control: whether it is a control token.
        trained: whether it is a target in this row.
        document: number of its document in the row, from 0; None for padding.
        position: position id.
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
        number: number in the stream of training rows, from 0.
        sources: names of the sources of its targets, in order; empty if unknown.
        names: names of its documents by number; None if unknown.
    """

    number: int
    sources: tuple[str, ...]
    tokens: tuple[Token, ...]
    names: tuple[str | None, ...]

    @property
    def trained(self) -> int:
        """Number of targets."""
        return sum(token.trained for token in self.tokens)

    @property
    def documents(self) -> int:
        """Number of documents in the row."""
        return len(self.names)

    def to_json(self) -> dict[str, Any]:
        """The row as JSON; incomplete characters are replaced with U+FFFD."""
        return {
            "row": self.number,
            "sources": list(self.sources),
            "ids": [token.id for token in self.tokens],
            "text": [token.data.decode(errors="replace") for token in self.tokens],
            "trained": [token.trained for token in self.tokens],
            "documents": list(self.names),
            "document": [token.document for token in self.tokens],
            "position": [token.position for token in self.tokens],
        }

    def characters(self) -> list[Token]:
        """The tokens, joined where they share a character, so that each item can be decoded."""
        joined: list[Token] = []
        for token in self.tokens:
            last = joined[-1] if joined else None
            alike = (
                last is not None
                and not (last.control or token.control)
                and ((last.trained, last.document) == (token.trained, token.document))
            )
            if last is not None and alike and _is_cut(last.data) and token.data[:1] > b"\x7f":
                joined[-1] = replace(last, data=last.data + token.data)
            else:
                joined.append(token)
        return joined


def _is_cut(data: bytes) -> bool:
    """True if a text ends in the middle of a UTF-8 character."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def samples_of(
    sequences: Sequences, rows: Rows, tokenizer: Tokenizer, first: int
) -> Iterator[Sample]:
    """Decoded rows, including targets that are not inputs, such as the last one of a document.

    Arguments:
        first: number of the first row in the stream.
    """
    batch = sequences.batch_of(rows)
    facts = getattr(tokenizer, "chat", None)
    controls = facts.controls if isinstance(facts, ChatFacts) else ()
    names = {facts.tokens[text]: text for text in controls} if facts else {}
    documents = sequences.names_in(rows)
    for row, doc_names in enumerate(documents):
        inputs: list[int] = batch.inputs[row].tolist()
        targets: list[int] = batch.targets[row].tolist()
        places = range(len(inputs)) if batch.positions is None else batch.positions[row].tolist()
        shown: list[tuple[int, int, int, bool]] = []  # token, column, position, trained
        trained = False  # whether the token is the target of the one before
        for i, (token, target) in enumerate(zip(inputs, targets, strict=True)):
            shown.append((token, i, places[i], trained))
            trained = target != IGNORE_INDEX
            ends = i + 1 == len(inputs) or doc_names[i + 1] is None
            ends = ends or (doc_names[i + 1] != doc_names[i] and places[i + 1] != places[i] + 1)
            if trained and (ends or inputs[i + 1] != target):
                shown.append((target, i, places[i] + 1, trained))
                trained = False
        numbers: dict[str | None, int] = {}
        tokens: list[Token] = []
        for token, i, place, trained in shown:
            padding = place < 0 or doc_names[i] is None
            number = None if padding else numbers.setdefault(doc_names[i], len(numbers))
            data = tokenizer.decode([token])
            control = token == tokenizer.separator or token in names or not data
            if control:
                data = names.get(token, "<|separator|>").encode()
            tokens.append(Token(token, data, control, trained, number, place))
        named = tuple(numbers)
        sources = () if batch.source is None else (int(batch.source[row]),)
        if batch.sources is not None:
            drawn = batch.sources[row][batch.targets[row] != IGNORE_INDEX].tolist()
            sources = tuple(dict.fromkeys(drawn)) or sources
        read_from = tuple(sequences.sources[source] for source in sources)
        yield Sample(first + row, read_from, tuple(tokens), named)
