"""Rows of records that hold tokens already, with labels: how data sets for training are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.document import Document, Place, Placed
from setpoint.data.sources.records import (
    BESIDE,
    TOKENS,
    Row,
    as_utf8,
    holds_tokens,
    text_at,
    value_at,
)

IGNORED = -100  # the label of a token that is no target, as PyTorch has it


class RowError(ValueError):
    """What is wrong in a row; whoever reads it adds the file and the row's number."""


@dataclass(frozen=True, slots=True)
class TokenizedRow:
    """The documents of a row, one after the other; see `setpoint.data.document.Document`.

    Arguments:
        starts: (documents,) the first token of each.
    """

    tokens: npt.NDArray[np.int64]
    trained: npt.NDArray[np.bool_] | None
    starts: Sequence[int] = (0,)

    def documents(self, name: str) -> Iterator[Document]:
        """The documents; several are numbered."""
        ends = [*self.starts[1:], len(self.tokens)]
        for number, (start, end) in enumerate(zip(self.starts, ends, strict=True)):
            trained = None if self.trained is None else self.trained[start:end]
            numbered = f"{name}.{number}" if len(ends) > 1 else name
            yield Document(numbered, tokens=self.tokens[start:end], trained=trained)


def row_documents(row: Row, field: str, where: str, shifted: bool) -> Iterator[Document]:
    """The document of a row: the text of a field, or tokens, of which a row may hold several.

    Arguments:
        shifted: see `read_tokens`.
        where: dotted path of the field of the configuration that names it.

    Raises:
        SetpointError: the row has no such field, or no text or tokens there, or what stands beside
            the tokens does not fit; with file and row.
    """
    if not holds_tokens(field):
        yield Document(row.name, as_utf8(text_at(row, field, where), row, where))
        return
    values = {TOKENS: value_at(row, field, where)}
    above = field.rpartition(".")[0]
    level = row.values if field in row.values or not above else value_at(row, above, where)
    if isinstance(level, Mapping):
        values |= {name: level[name] for name in BESIDE if name in level}
    try:
        found = read_tokens(values, shifted)
        if found.trained is not None and not found.trained.any():
            raise RowError(f"field 'labels': all are {IGNORED}, so nothing in it is trained on")
    except RowError as error:
        raise SetpointError(
            f"{where}: {row.place}: {error}.\nValid: a list of int in {field}, and beside it "
            f"{', '.join(BESIDE)} of the same length; leave such rows out."
        ) from error
    yield from found.documents(row.name)


def placed_documents(
    row: Row, field: str, where: str, shifted: bool, before: Place, behind: Callable[[], Place]
) -> Iterator[Placed]:
    """The documents of a row of a stream, with the place behind each.

    Arguments:
        before: the place of the row, from where on `skip` of its documents were read already.
        behind: tells the place behind the row.

    Raises:
        SetpointError: see `row_documents`.
    """
    documents = list(row_documents(row, field, where, shifted))
    for number, document in enumerate(documents[before.get("skip", 0) :], before.get("skip", 0)):
        last = number == len(documents) - 1
        yield document, behind if last else partial(dict, before, skip=number + 1)


def read_tokens(row: Mapping[str, Any], shifted: bool = False) -> TokenizedRow:
    """Read `input_ids`, and `labels`, `attention_mask` and `position_ids` where there are some.

    Where the mask is 0 a token is left out; positions that begin again begin a document.

    Arguments:
        shifted: whether the label at each place is the next token, and not the token itself.

    Raises:
        RowError: one of them is no list of int, or of another length, or does not fit the tokens.
    """
    tokens = _numbers(row[TOKENS], TOKENS)
    beside = {name: _numbers(row[name], name, len(tokens)) for name in BESIDE
              if row.get(name) is not None}  # fmt: skip
    labels, mask, positions = (beside.get(name) for name in BESIDE)
    if mask is not None and (wrong := np.flatnonzero((mask != 0) & (mask != 1))).size:
        at = int(wrong[0])
        raise RowError(f"field 'attention_mask': place {at} has {mask[at]}, and 0 or 1 is needed")
    if shifted:
        if labels is None:
            raise RowError("field 'labels': is missing, and shifted_labels = true reads it")
        return _shifted(tokens, labels, mask, positions)
    trained = None
    if labels is not None:
        trained = labels != IGNORED
        wrong = np.flatnonzero(trained & (labels != tokens))
        if len(wrong):
            at = int(wrong[0])
            raise RowError(
                f"field 'labels': place {at} has {labels[at]}, and input_ids has {tokens[at]} "
                f"there; a label is the token itself (not the next one, as it is with "
                f"shifted_labels = true) or {IGNORED}"
            )
    if mask is not None:
        kept = mask != 0
        tokens = tokens[kept]
        trained = None if trained is None else trained[kept]
        positions = None if positions is None else positions[kept]
    if not len(tokens):
        raise RowError("field 'input_ids': holds no token")
    return TokenizedRow(tokens, trained, (0,) if positions is None else _starts(positions))


def _shifted(
    tokens: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
    mask: npt.NDArray[np.int64] | None,
    positions: npt.NDArray[np.int64] | None,
) -> TokenizedRow:
    """Documents whose labels are next tokens, the last of which may stand among the labels alone.

    Raises:
        RowError: a label is another token than the next one.
    """
    if mask is not None:
        kept = mask != 0
        tokens, labels = tokens[kept], labels[kept]
        positions = None if positions is None else positions[kept]
    if not len(tokens):
        raise RowError("field 'input_ids': holds no token")
    starts = [0] if positions is None else _starts(positions)
    parts: list[npt.NDArray[np.int64]] = []
    masks: list[npt.NDArray[np.bool_]] = []
    for start, end in pairwise([*starts, len(tokens)]):
        trained = labels[start:end] != IGNORED
        wrong = np.flatnonzero(trained[:-1] & (labels[start : end - 1] != tokens[start + 1 : end]))
        if len(wrong):
            at = start + int(wrong[0])
            raise RowError(
                f"field 'labels': place {at} has {labels[at]}, and input_ids has {tokens[at + 1]} "
                f"at the next place; with shifted_labels = true a label is the next token or "
                f"{IGNORED}"
            )
        last = labels[end - 1 : end][trained[-1:]]  # the target behind the last token, if any
        parts += [tokens[start:end], last]
        masks += [np.zeros(1, np.bool_), trained[: end - start - 1], np.ones(len(last), np.bool_)]
    sizes = [len(a) + len(b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    begins = np.cumsum([0, *sizes[:-1]]).tolist()
    return TokenizedRow(np.concatenate(parts), np.concatenate(masks), begins)


def _starts(positions: npt.NDArray[np.int64]) -> list[int]:
    """Where documents begin: where positions do."""
    expected = np.append(0, positions[:-1] + 1)
    wrong = np.flatnonzero((positions != expected) & (positions != 0))
    if len(wrong):
        at = int(wrong[0])
        raise RowError(
            f"field 'position_ids': {positions[at]} where {expected[at]} follows, or 0 with which "
            "another document begins"
        )
    return np.flatnonzero(positions == 0).tolist()


def _numbers(found: Any, field: str, length: int | None = None) -> npt.NDArray[np.int64]:
    if isinstance(found, str):  # as in the cells of a CSV file
        with suppress(ValueError):  # what it is then is said below
            found = json.loads(found)
    if not isinstance(found, Sequence | np.ndarray) or isinstance(found, str):
        raise RowError(f"field {field!r}: a list of int is needed, and it is {kind_of(found)}")
    if not _are_ints(found):
        wrong = next((x for x in found if isinstance(x, bool) or not _is_int(x)), found)
        raise RowError(f"field {field!r}: a list of int is needed, and {wrong!r} is in it")
    if length is not None and len(found) != length:
        raise RowError(f"field {field!r}: has {len(found)} entries, and input_ids has {length}")
    return np.array(found, dtype=np.int64)


def _are_ints(found: Any) -> bool:
    if not len(found):
        return True
    try:
        array = np.asarray(found)
    except (ValueError, OverflowError):
        return False
    # A bool among numbers becomes one of them.
    return array.ndim == 1 and array.dtype.kind in "iu" and bool not in set(map(type, found))


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer)


def kind_of(value: Any) -> str:
    """What a value is, for messages."""
    if value is None:
        return "missing"
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:40] + '...'}, of type {type(value).__name__}"
