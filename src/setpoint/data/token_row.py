"""Tokens in a row: one array in memory, or many that lie in mapped files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

Ints = npt.NDArray[np.int64]
TokenArray = npt.NDArray[np.unsignedinteger[Any]]
"""Token ids in the smallest unsigned type that holds the vocabulary."""


class TokenRow(Protocol):
    """What sequences are cut from; an array is one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its items."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice, /) -> npt.NDArray[Any]: ...


class JoinedRow:
    """Arrays of one type as one row, none of which is copied.

    Arguments:
        parts: such as the files of prepared data, mapped into memory; at least one.
    """

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        # Plain arrays: slices of mapped ones take five times as long.
        self.parts = tuple(np.asarray(part) for part in parts)
        sizes = np.array([len(part) for part in self.parts], np.int64)
        self.ends = np.cumsum(sizes)
        self.firsts = self.ends - sizes
        self.dtype: np.dtype[Any] = np.result_type(*self.parts)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, key: slice, /) -> npt.NDArray[Any]:
        """Items of a range, without a step: of one part as they lie there, else a copy."""
        start, stop, step = key.indices(len(self))
        assert step == 1
        number = int(np.searchsorted(self.ends, start, "right"))
        pieces: list[npt.NDArray[Any]] = []
        while start < stop:
            first = int(self.firsts[number])
            pieces.append(self.parts[number][start - first : stop - first])
            start, number = int(self.ends[number]), number + 1
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, self.dtype)

    def slices(self, starts: Ints, stops: Ints) -> Iterator[npt.NDArray[Any]]:
        """Many ranges; several times faster than one after the other."""
        numbers = np.searchsorted(self.ends, starts, "right").clip(max=len(self.parts) - 1)
        before = self.firsts[numbers]
        found = (numbers.tolist(), (starts - before).tolist(), (stops - before).tolist())
        for number, first, last in zip(*found, strict=True):
            part = self.parts[number]
            if last <= len(part):
                yield part[first:last]
            else:
                begin = int(self.firsts[number])
                yield self[begin + first : begin + last]


def slices(row: TokenRow, starts: Ints, stops: Ints) -> Iterator[npt.NDArray[Any]]:
    """Ranges of a row, (B,) starts and stops."""
    if isinstance(row, JoinedRow):
        return row.slices(starts, stops)
    return (row[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True))


def gather(row: TokenRow, starts: Ints, width: int) -> Ints:
    """Cut windows, (B,) starts -> (B, width); past the end the last item is repeated."""
    size = len(row)
    if isinstance(row, np.ndarray) and (starts <= size - width).all():
        views = as_strided(row, (size - width + 1, width), row.strides * 2, writeable=False)
        return views[starts].astype(np.int64)
    found = np.empty((len(starts), width), row.dtype)
    for window, items in zip(found, slices(row, starts, starts + width), strict=True):
        window[: len(items)] = items
        if len(items) < width:
            window[len(items) :] = row[size - 1 : size]
    return found.astype(np.int64)
